package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
)

// natsConfigCommand prints the configuration of a nats-server.
func natsConfigCommand() *cobra.Command {
	var f broker.ServerFile
	var trainers, workers, cluster, dir string
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the same accounts for a nats-server of your own",
		Long: "Print a configuration file for nats-server 2.12 or later, with an account for the workers and one for each trainer.\n\n" +
			"Credentials go to the folder --keys, which keeps those of earlier calls. A name may have its public key, as in --trainers alpha=UDXU…; then no\n" +
			"credential is made for it. For a cluster, print the file of each server with --cluster n1=HOST,n2=HOST,n3=HOST and --server n1, n2 and n3; each needs the\n" +
			"folder's file cluster.conf beside it. After a change reload the servers with nats-server --signal reload, twice for new trainers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			members, err := clusterMembers(cluster)
			if err != nil {
				return err
			}
			f.Cluster, f.Secrets = members, dir
			if err := f.Validate(); err != nil {
				return usageOf(err)
			}
			keys, err := broker.OpenKeyring(dir)
			if err != nil {
				return err
			}
			for _, list := range []struct {
				names string
				to    access
			}{{trainers, trainerAccess()}, {workers, workerAccess()}} {
				for _, entry := range splitList(list.names) {
					name, public, _ := strings.Cut(entry, "=")
					if err := list.to.add(keys, name, public); err != nil {
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
	fl.StringVar(&dir, "keys", "creds", "folder of credentials")
	fl.StringVar(&f.Name, "server", "", "name of this server (default turngate)")
	fl.StringVar(&cluster, "cluster", "", "all servers of a cluster: NAME=HOST[:PORT], comma-separated; port 6222 by default")
	fl.StringVar(&f.Listen, "listen", "127.0.0.1:4222", "host:port for clients")
	fl.StringVar(&f.Store, "store", "jetstream", "folder of JetStream's files")
	fl.StringVar(&f.Cert, "tls-cert", "", "PEM file with the server's certificate")
	fl.StringVar(&f.Key, "tls-key", "", "PEM file with the certificate's key")
	fl.StringVar(&f.CA, "tls-ca", "", "PEM file with the authority of the certificates of a cluster, for TLS between its servers")
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
