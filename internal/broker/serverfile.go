package broker

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/schema"
)

// ServerFile describes the configuration file of a nats-server with the accounts
// of a keyring. The file has public keys only.
type ServerFile struct {
	Name   string // of this server; default turngate
	Listen string // host:port for clients; default 127.0.0.1:4222
	Store  string // folder of JetStream's files; default jetstream
	// StoreSize is the size of the disk of JetStream's files, like 200GB; default 1TB. The
	// server counts the bounds of all streams against it. Without it a server takes three
	// quarters of the free room at each start, and one that starts again with less room
	// makes no streams of new trainers.
	StoreSize string
	Cluster   []Member
	// Secrets is the path of the keyring's folder from the folder of this file, for a
	// cluster's included secret; default: the keyring's folder, beside this file if
	// its path is absolute.
	Secrets string
	// Cert, Key and CA are paths of PEM files for TLS. With CA the servers of a
	// cluster also check each other's certificates, and a leaf node has TLS to its
	// servers and checks theirs. Empty: no TLS.
	Cert, Key, CA string
	// LeafListen is the host:port for leaf nodes; empty: none. Then each client other
	// than a leaf node may only connect as a client.
	LeafListen string
	// LeafOf has the host or host:port of the servers of this leaf node; the port is 7422 by
	// default. Then Name is the name of its site, and of the keyring's clients it admits the
	// workers alone. Empty: this is no leaf node.
	LeafOf []string
	// Enroll lets hosts without a credential ask to become machines, see EmbeddedConfig.
	Enroll bool
}

// Member is one server of a cluster.
type Member struct {
	Name string
	Host string // name or address by which the other servers reach it
	Port int    // for the other servers; default 6222
}

var storeSize = regexp.MustCompile(`^[1-9][0-9]{0,5}(MB|GB|TB)$`)

// clusterPort is the usual port of nats-server for other servers.
const clusterPort = 6222

// Validate checks the values.
func (f ServerFile) Validate() error {
	for _, s := range []struct{ what, value string }{{"listen", f.Listen}, {"store", f.Store}, {"secrets", f.Secrets}, {"TLS certificate", f.Cert}, {"TLS key", f.Key}, {"TLS CA", f.CA}, {"leaf nodes' address", f.LeafListen}} {
		if strings.ContainsAny(s.value, "\"\\\n\r") {
			return fmt.Errorf("%s: %q is not valid: want no quotes, backslashes or line ends", s.what, s.value)
		}
	}
	if f.StoreSize != "" && !storeSize.MatchString(f.StoreSize) {
		return fmt.Errorf("size of the store: %q is not valid: want a number of MB, GB or TB, like 200GB", schema.Clip(f.StoreSize, 80))
	}
	for _, host := range f.LeafOf {
		if host == "" || strings.ContainsAny(host, " \"\\\n\r/@") {
			return fmt.Errorf("server of the leaf node: %q is not valid: want HOST or HOST:PORT", schema.Clip(host, 80))
		}
	}
	switch {
	case len(f.LeafOf) > 0 && f.Enroll:
		return errors.New("leaf node: hosts cannot enroll at it: want that of the servers with the accounts")
	case len(f.LeafOf) > 0 && (len(f.Cluster) > 0 || f.LeafListen != ""):
		return errors.New("leaf node: a cluster and other leaf nodes are not valid: want a leaf node alone")
	case (f.Cert == "") != (f.Key == "") || f.CA != "" && f.Cert == "" && len(f.LeafOf) == 0:
		return errors.New("TLS: want a certificate and its key together, and both with a CA")
	case len(f.Cluster) > 0 && f.Cert != "" && f.CA == "":
		return errors.New("TLS: a cluster with a certificate and without a CA is not valid: want a CA, since the servers would talk to each other in the clear")
	}
	return nil
}

// ServerFile returns the text of the file. For a cluster and for a leaf node it also
// writes a file with a secret into the keyring, which the text includes.
func (k *Keyring) ServerFile(f ServerFile) (string, error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	f.Name, f.Listen, f.Store = cmp.Or(f.Name, "turngate"), cmp.Or(f.Listen, "127.0.0.1:4222"), cmp.Or(f.Store, "jetstream")
	f.StoreSize = cmp.Or(f.StoreSize, "1TB")
	if err := schema.CheckToken("server name", f.Name); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by `turngate nats config`; it has public keys only.\nserver_name: \"%s\"\nlisten: \"%s\"\nmax_payload: 8MB\nmax_pending: 16MB\n", f.Name, f.Listen)
	if f.Cert != "" {
		fmt.Fprintf(&b, "tls { cert_file: \"%s\", key_file: \"%s\" }\n", f.Cert, f.Key)
	}
	if len(f.LeafOf) > 0 {
		if err := k.writeLeaf(&b, f); err != nil {
			return "", err
		}
		return b.String(), nil
	}
	all, err := k.access(f.Enroll)
	if err = errors.Join(append(all.leftOut, err)...); err != nil {
		return "", err
	}
	if len(all.leaves) > 0 && f.LeafListen == "" {
		return "", fmt.Errorf("leaf nodes: the keyring has the sites %s, and there is no address for their leaf nodes: want a host:port (--leaf-listen), or remove the files leaf-SITE of %s",
			strings.Join(slices.Sorted(maps.Keys(all.leaves)), ", "), k.dir)
	}
	fmt.Fprintf(&b, "jetstream { store_dir: \"%s\", max_file_store: %s, sync_interval: always }\n", f.Store, f.StoreSize)
	if len(f.Cluster) > 0 {
		if err := k.writeCluster(&b, f); err != nil {
			return "", err
		}
	}
	if f.LeafListen != "" {
		all.kinds = kindStandard
		tls := ""
		if f.Cert != "" {
			tls = fmt.Sprintf("  tls { cert_file: \"%s\", key_file: \"%s\" }\n", f.Cert, f.Key)
		}
		fmt.Fprintf(&b, "leafnodes {\n  listen: \"%s\"\n  no_advertise: true\n%s}\n%s", f.LeafListen, tls, plainDomain)
	}
	b.WriteString(all.config())
	return b.String(), nil
}

// plainDomain lets the subjects of JetStream and of its buckets pass between a server
// and a leaf node without JetStream. Otherwise the servers hold them back, and a
// mapping to a domain would hide the messages of a bucket from subscribers.
const plainDomain = "default_js_domain: { " + accountWorkers + ": \"\" }\n"

// leafPort is the usual port of nats-server for leaf nodes.
const leafPort = "7422"

// leafFile has the seed of a site's credential.
const leafFile = "leaf.conf"

// writeLeaf writes the configuration of a leaf node.
func (k *Keyring) writeLeaf(b *strings.Builder, f ServerFile) error {
	all := newAccess()
	err := k.read(&all, RoleWorker)
	if err = errors.Join(append(all.leftOut, err)...); err != nil {
		return err
	}
	seed, err := owned.Read(k.file(RoleLeaf+"-"+f.Name, seedExt))
	if err == nil {
		_, err = publicOf(seed) // the text becomes a part of the server's configuration
	}
	if err != nil {
		return fmt.Errorf("credential of site %s: %w", f.Name, err)
	}
	if err := owned.Replace(filepath.Join(k.dir, leafFile), []byte("nkey: "+strings.TrimSpace(string(seed))+"\n")); err != nil {
		return fmt.Errorf("write the site's secret: %w", err)
	}
	scheme, tls := "nats-leaf", ""
	if f.CA != "" {
		scheme, tls = "tls", fmt.Sprintf("    tls { ca_file: \"%s\" }\n", f.CA)
	}
	var urls []string
	for _, host := range f.LeafOf {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), leafPort)
		}
		urls = append(urls, scheme+"://"+host)
	}
	// A link that is cut without a word is noticed within 30 s, before leases lapse.
	fmt.Fprintf(b, "ping_interval: \"10s\"\nping_max: 2\nleafnodes {\n  remotes: [ {\n    urls: %s\n    account: %s\n%s    include \"%s\"\n  } ]\n}\n%s", quoted(urls), accountWorkers, tls, k.included(f, leafFile), plainDomain)
	fmt.Fprintf(b, "accounts {\n  %s {\n    users: [\n%s    ]\n  }\n}\n", accountWorkers, all.workerUsers())
	return nil
}

// included returns the path of a file of the keyring, from the folder of the server's
// file.
func (k *Keyring) included(f ServerFile, name string) string {
	secrets := cmp.Or(f.Secrets, k.dir)
	if filepath.IsAbs(secrets) { // nats-server includes files below the folder of its own file only
		secrets = filepath.Base(secrets)
	}
	return filepath.Join(secrets, name)
}

const clusterFile = "cluster.conf"

func (k *Keyring) writeCluster(b *strings.Builder, f ServerFile) error {
	secret, err := k.clusterSecret()
	if err != nil {
		return err
	}
	var routes []string
	port := 0
	for _, m := range f.Cluster {
		if err := schema.CheckToken("server name", m.Name); err != nil {
			return err
		}
		if m.Host == "" || strings.ContainsAny(m.Host, " \"\\\n\r/@") {
			return fmt.Errorf("host of server %s: %q is not valid: want a name or an address", m.Name, m.Host)
		}
		if m.Port == 0 {
			m.Port = clusterPort
		}
		if m.Name == f.Name {
			port = m.Port
		}
		routes = append(routes, fmt.Sprintf("\"nats-route://turngate:%s@%s:%d\"", secret, m.Host, m.Port))
	}
	if port == 0 {
		return fmt.Errorf("server name: %q is not valid: want a server of the cluster", f.Name)
	}
	text := fmt.Sprintf("authorization { user: turngate, password: \"%s\" }\nroutes: [\n  %s\n]\n", secret, strings.Join(routes, "\n  "))
	if err := owned.Replace(filepath.Join(k.dir, clusterFile), []byte(text)); err != nil {
		return fmt.Errorf("write the cluster's secret: %w", err)
	}
	tls := ""
	if f.CA != "" {
		tls = fmt.Sprintf("  tls { cert_file: \"%s\", key_file: \"%s\", ca_file: \"%s\", verify: true }\n", f.Cert, f.Key, f.CA)
	}
	fmt.Fprintf(b, "cluster {\n  name: turngate\n  listen: \"0.0.0.0:%d\"\n%s  include \"%s\"\n}\n", port, tls, k.included(f, clusterFile))
	return nil
}

// clusterSecret returns the secret by which the servers of a cluster know each
// other.
func (k *Keyring) clusterSecret() (string, error) {
	secret, err := loadOrMake(filepath.Join(k.dir, "cluster.secret"), func() ([]byte, error) {
		b := make([]byte, 24)
		_, _ = rand.Read(b) // never fails
		return []byte(hex.EncodeToString(b)), nil
	})
	return string(secret), err
}
