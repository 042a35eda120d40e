package broker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/turngate/turngate/schema"
)

// ServerFile describes the configuration file of a nats-server with the accounts
// of a keyring. The file has public keys only.
type ServerFile struct {
	Name    string // of this server; default turngate
	Listen  string // host:port for clients; default 127.0.0.1:4222
	Store   string // folder of JetStream's files; default jetstream
	Cluster []Member
	// Secrets is the path of the keyring's folder from the folder of this file, for a
	// cluster's included secret; default: the keyring's folder, beside this file if
	// its path is absolute.
	Secrets string
	// Cert, Key and CA are paths of PEM files for TLS. With CA the servers of a
	// cluster also check each other's certificates. Empty: no TLS.
	Cert, Key, CA string
}

// Member is one server of a cluster.
type Member struct {
	Name string
	Host string // name or address by which the other servers reach it
	Port int    // for the other servers; default 6222
}

// clusterPort is the usual port of nats-server for other servers.
const clusterPort = 6222

// Validate checks the values.
func (f ServerFile) Validate() error {
	for _, s := range []struct{ what, value string }{{"listen", f.Listen}, {"store", f.Store}, {"secrets", f.Secrets}, {"TLS certificate", f.Cert}, {"TLS key", f.Key}, {"TLS CA", f.CA}} {
		if strings.ContainsAny(s.value, "\"\\\n\r") {
			return fmt.Errorf("%s: %q is not valid: want no quotes, backslashes or line ends", s.what, s.value)
		}
	}
	switch {
	case (f.Cert == "") != (f.Key == "") || f.CA != "" && f.Cert == "":
		return errors.New("TLS: want a certificate and its key together, and both with a CA")
	case len(f.Cluster) > 0 && f.Cert != "" && f.CA == "":
		return errors.New("TLS: a cluster with a certificate and without a CA is not valid: want a CA, since the servers would talk to each other in the clear")
	}
	return nil
}

// ServerFile returns the text of the file. For a cluster it also writes a file
// with the servers' common secret into the keyring, which the text includes.
func (k *Keyring) ServerFile(f ServerFile) (string, error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	all, err := k.access()
	if err = errors.Join(append(all.leftOut, err)...); err != nil {
		return "", err
	}
	name, listen, store := f.Name, f.Listen, f.Store
	if name == "" {
		name = "turngate"
	}
	if listen == "" {
		listen = "127.0.0.1:4222"
	}
	if store == "" {
		store = "jetstream"
	}
	if err := schema.CheckToken("server name", name); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by `turngate nats config`; it has public keys only.\nserver_name: \"%s\"\nlisten: \"%s\"\nmax_payload: 8MB\nmax_pending: 16MB\n", name, listen)
	fmt.Fprintf(&b, "jetstream { store_dir: \"%s\", sync_interval: always }\n", store)
	if f.Cert != "" {
		fmt.Fprintf(&b, "tls { cert_file: \"%s\", key_file: \"%s\" }\n", f.Cert, f.Key)
	}
	if len(f.Cluster) > 0 {
		if err := k.writeCluster(&b, f, name); err != nil {
			return "", err
		}
	}
	b.WriteString(all.config())
	return b.String(), nil
}

const clusterFile = "cluster.conf"

func (k *Keyring) writeCluster(b *strings.Builder, f ServerFile, name string) error {
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
		if m.Name == name {
			port = m.Port
		}
		routes = append(routes, fmt.Sprintf("\"nats-route://turngate:%s@%s:%d\"", secret, m.Host, m.Port))
	}
	if port == 0 {
		return fmt.Errorf("server name: %q is not valid: want a server of the cluster", name)
	}
	text := fmt.Sprintf("authorization { user: turngate, password: \"%s\" }\nroutes: [\n  %s\n]\n", secret, strings.Join(routes, "\n  "))
	if err := replace(filepath.Join(k.dir, clusterFile), []byte(text)); err != nil {
		return fmt.Errorf("write the cluster's secret: %w", err)
	}
	secrets := f.Secrets
	if secrets == "" {
		secrets = k.dir
	}
	if filepath.IsAbs(secrets) { // nats-server includes files below the folder of its own file only
		secrets = filepath.Base(secrets)
	}
	tls := ""
	if f.CA != "" {
		tls = fmt.Sprintf("  tls { cert_file: \"%s\", key_file: \"%s\", ca_file: \"%s\", verify: true }\n", f.Cert, f.Key, f.CA)
	}
	fmt.Fprintf(b, "cluster {\n  name: turngate\n  listen: \"0.0.0.0:%d\"\n%s  include \"%s\"\n}\n", port, tls, filepath.Join(secrets, clusterFile))
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
