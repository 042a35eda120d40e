package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
)

// natsConfigCommand prints the configuration of a nats-server.
func natsConfigCommand() *cobra.Command {
	var f broker.ServerFile
	var trainers, workers, leaves, cluster, leafOf, dir string
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the same accounts for a nats-server of your own",
		Long: "Print a configuration file for nats-server 2.12 or later, with an account for the workers and one for each trainer.\n\n" +
			"Credentials go to the folder --keys, which keeps those of earlier calls. A name may have its public key, as in --trainers alpha=UDXU…; then no\n" +
			"credential is made for it. For a cluster, print the file of each server with --cluster n1=HOST,n2=HOST,n3=HOST and --server n1, n2 and n3; each needs the\n" +
			"folder's file cluster.conf beside it. With --leaf-of HOST --server SITE the file is that of a leaf node for the workers of a site: it has no JetStream and no\n" +
			"trainers, and the folder needs leaf-SITE.nk, which --leaves SITE has made for the other servers. After a change reload the servers with nats-server --signal reload, twice for new trainers.\n" +
			"The first --leaf-listen, and the removal of a site, need a restart.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			members, err := clusterMembers(cluster)
			if err != nil {
				return err
			}
			f.Cluster, f.Secrets, f.LeafOf = members, dir, splitList(leafOf)
			switch {
			case cmd.Flags().Changed("leaf-of") && len(f.LeafOf) == 0:
				return usage("--leaf-of: %q is not valid: want HOST or HOST:PORT of the other servers", leafOf)
			case len(f.LeafOf) > 0 && (trainers != "" || leaves != ""):
				return usage("--leaf-of: --trainers and --leaves are not valid with it: want them for the other servers")
			case len(f.LeafOf) > 0 && f.Name == "":
				return usage("--leaf-of: want --server, the name of the site")
			case leaves != "" && f.LeafListen == "":
				return usage("--leaves: want --leaf-listen, the host:port for leaf nodes")
			}
			if err := errors.Join(f.Validate(), f.CheckTLS()); err != nil {
				return usageOf(err)
			}
			keys, err := broker.OpenKeyring(dir)
			if err != nil {
				return err
			}
			for _, list := range []struct {
				names string
				add   func(keys *broker.Keyring, name, public string) error
			}{{trainers, (*broker.Keyring).AddTrainer}, {workers, (*broker.Keyring).AddWorker}, {leaves, (*broker.Keyring).AddLeaf}} {
				for _, entry := range splitList(list.names) {
					name, public, _ := strings.Cut(entry, "=")
					if err := list.add(keys, name, public); err != nil {
						return err
					}
				}
			}
			text, err := keys.ServerFile(f)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), text)
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&trainers, "trainers", "", "names of trainers, comma-separated, each with =PUBLICKEY or not")
	fl.StringVar(&workers, "workers", "", "names of workers, comma-separated, each with =PUBLICKEY or not")
	fl.StringVar(&leaves, "leaves", "", "names of sites with a leaf node, comma-separated, each with =PUBLICKEY or not")
	fl.StringVar(&f.LeafListen, "leaf-listen", "", "host:port for leaf nodes (default: none)")
	fl.StringVar(&leafOf, "leaf-of", "", "print the file of a leaf node of these servers: HOST[:PORT], comma-separated; port 7422 by default")
	fl.StringVar(&dir, "keys", "creds", "folder of credentials")
	fl.StringVar(&f.Name, "server", "", "name of this server (default turngate)")
	fl.StringVar(&cluster, "cluster", "", "all servers of a cluster: NAME=HOST[:PORT], comma-separated; port 6222 by default")
	fl.StringVar(&f.Listen, "listen", "127.0.0.1:4222", "host:port for clients")
	fl.StringVar(&f.Store, "store", "jetstream", "folder of JetStream's files")
	fl.StringVar(&f.StoreSize, "store-size", "", "size of the disk of JetStream's files, like 200GB: the server counts the bounds of all streams against it (default 1TB)")
	fl.BoolVar(&f.Enroll, "enroll", false, "let hosts without a credential ask to become machines; 'turngate nats enroll' answers them")
	fl.StringVar(&f.Cert, "tls-cert", "", "PEM file with the server's certificate; it is checked if this host has it")
	fl.StringVar(&f.Key, "tls-key", "", "PEM file with the certificate's key")
	fl.StringVar(&f.CA, "tls-ca", "", "PEM file with the authority of the certificates of a cluster, for TLS between its servers; of a leaf node: of the servers of --leaf-of, for TLS to them")
	return cmd
}

// clusterMembers reads --cluster.
func clusterMembers(text string) ([]broker.Member, error) {
	var out []broker.Member
	for _, entry := range splitList(text) {
		name, host, ok := strings.Cut(entry, "=")
		m := broker.Member{Name: name, Host: host}
		if h, p, err := net.SplitHostPort(host); err == nil {
			m.Host = h
			if m.Port, err = strconv.Atoi(p); err != nil || m.Port < 1 || m.Port > 65535 {
				return nil, usage("--cluster: port %q of %s is not valid: want 1 to 65535", p, name)
			}
		}
		if !ok || m.Host == "" {
			return nil, usage("--cluster: %q is not valid: want NAME=HOST or NAME=HOST:PORT", entry)
		}
		out = append(out, m)
	}
	return out, nil
}

// natsEnrollCommand answers hosts that enroll, beside a nats-server.
func natsEnrollCommand() *cobra.Command {
	var url, keys string
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Answer hosts that ask to become machines, beside a nats-server of your own",
		Long: "Answer hosts that run `turngate machine enroll`, until a signal. The server has the file of `turngate nats config --enroll` with the same --keys. `turngate up` and `turngate nats` do this themselves with --enroll.\n\n" +
			"`turngate machine approve CODE` then keeps the key in the folder. The host is admitted when the server has a file that is printed after that, and was reloaded twice.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := os.Stat(keys); err != nil {
				return usage("--keys: want the server's folder of credentials: %w", err)
			}
			ring, err := broker.OpenKeyring(keys)
			if err != nil {
				return err
			}
			log := newLogger(cmd, zerolog.InfoLevel)
			d := &enroll.Desk{Keys: ring, Log: log, Ready: func() { log.Info().Str("url", broker.ShownURL(url)).Msg("hosts that enroll are answered") }}
			return d.Run(cmd.Context(), url)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&url, "nats", defaultURL, "URL of the NATS server")
	fl.StringVar(&keys, "keys", "creds", "folder of credentials")
	return cmd
}
