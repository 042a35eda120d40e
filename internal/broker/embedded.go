package broker

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/schema"
)

// EmbeddedConfig describes a NATS server in this process.
type EmbeddedConfig struct {
	StateDir string   // JetStream's files and the credentials; created with mode 0700
	Port     int      // on 127.0.0.1; 0 picks a free port
	Trainers []string // each gets a credential that may act only as this trainer
	Workers  []string // each gets a credential that is bound to its name
	// Relaxed lets the operating system decide when files are written to disk: a
	// power failure may then lose up to two minutes of confirmed messages. By
	// default requests, states and results are on disk when they are confirmed.
	Relaxed bool
	// Enroll lets hosts without a credential ask to become machines. A desk answers them,
	// see package enroll.
	Enroll  bool
	Cluster ClusterConfig
	// Failed is called, also concurrently, with each *StoreError of the server. It must
	// not block.
	Failed func(error)
	Log    zerolog.Logger
}

// ClusterConfig makes a server a member of a cluster, which replicates the
// streams. All servers are on 127.0.0.1; for a cluster of several hosts see
// ServerFile.
type ClusterConfig struct {
	Name   string   // of this server, such as n1; empty: no cluster
	Port   int      // cluster port of this server
	Routes []string // host:port of the other servers' cluster ports
	// Advertise is the host:port of this server's cluster port that the others tell
	// each other; default: this server's own address.
	Advertise string
	Creds     string // folder of credentials that all servers share; default: the state directory's
}

// Embedded is a NATS server in this process. It listens on loopback only, has
// JetStream on disk and always requires authentication. The workers have an
// account, and so has each trainer, see docs/adr/0005-accounts.md.
type Embedded struct {
	*Keyring
	config EmbeddedConfig
	srv    *server.Server
	system *nats.Conn // serves ReloadServers, and asks for the server's health

	mu    sync.Mutex // of reloads
	loads int64      // number of times that the settings were read

	stop context.CancelFunc // ends the goroutines of bg
	bg   sync.WaitGroup
}

// StartEmbedded starts the server and waits until it accepts connections. It
// admits the clients of the keyring <state>/creds, to which it adds the
// configured trainers and workers.
func StartEmbedded(c EmbeddedConfig) (*Embedded, error) {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	creds := cmp.Or(c.Cluster.Creds, filepath.Join(c.StateDir, "creds"))
	for _, dir := range []string{c.StateDir, filepath.Join(c.StateDir, "nats"), creds} {
		if err := owned.Check(dir); err != nil {
			return nil, fmt.Errorf("the server's state: %w", err)
		}
	}
	keys, err := OpenKeyring(creds)
	if err != nil {
		return nil, err
	}
	for _, tid := range c.Trainers {
		if err := keys.AddTrainer(tid, ""); err != nil {
			return nil, err
		}
	}
	for _, wid := range c.Workers {
		if err := keys.AddWorker(wid, ""); err != nil {
			return nil, err
		}
	}
	e := &Embedded{Keyring: keys, config: c}
	opts, err := e.options()
	if err != nil {
		return nil, err
	}
	if e.srv, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("configure the embedded NATS server: %w", err)
	}
	e.srv.SetLoggerV2(&serverLog{log: c.Log, failed: c.Failed}, false, false, false)
	e.srv.Start()
	if !e.srv.ReadyForConnections(20 * time.Second) {
		e.srv.Shutdown()
		return nil, fmt.Errorf("the embedded NATS server did not start on port %d; is it in use, or %s not writable?", c.Port, c.StateDir)
	}
	life, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.bg.Go(func() { e.boundPending(life) })
	if err := e.serveReloads(); err != nil {
		e.Shutdown()
		return nil, err
	}
	return e, nil
}

// options returns the server's options with the accounts of the keyring.
func (e *Embedded) options() (*server.Options, error) {
	all, err := e.access(e.config.Enroll)
	if err != nil {
		return nil, err
	}
	for _, err := range all.leftOut {
		e.config.Log.Error().Err(err).Msg("a client is not admitted")
	}
	opts := &server.Options{}
	if err := opts.ProcessConfigString(all.config()); err != nil {
		return nil, fmt.Errorf("configure the accounts of the embedded NATS server: %w", err)
	}
	// A reload compares the old users with the new ones field by field, and reads their
	// accounts, which other goroutines of the server write. A different time of issue in
	// the first user ends the comparison before that.
	e.loads++
	for _, u := range opts.Nkeys {
		u.Issued = e.loads
	}
	opts.ServerName, opts.Host, opts.Port = "turngate", "127.0.0.1", e.config.Port
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	opts.JetStream, opts.StoreDir, opts.SyncAlways = true, filepath.Join(e.config.StateDir, "nats"), !e.config.Relaxed
	if opts.JetStreamMaxStore, err = storeLimit(e.config.StateDir); err != nil {
		return nil, err
	}
	opts.MaxPayload, opts.MaxPending, opts.NoSigs, opts.NoLog, opts.DisableShortFirstPing = maxPayload, maxPending, true, true, true
	if e.config.Cluster.Name != "" {
		if err := e.join(opts, e.config.Cluster); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// Reload admits the clients that were added to the keyring and shuts out the
// clients that were removed from it. All other connections stay. Messages between
// accounts may be lost while the server replaces the accounts.
func (e *Embedded) Reload() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	// The first reload makes new accounts without the subscriptions of their imported
	// services, so that a request of a new trainer would reach no worker. The second one
	// finds the accounts and adds them.
	for range 2 {
		opts, err := e.options()
		if err != nil {
			return err
		}
		if err := e.srv.ReloadOptions(opts); err != nil {
			return fmt.Errorf("reload the accounts of the embedded NATS server: %w", err)
		}
	}
	return nil
}

// join adds the cluster to the server's options. The servers authenticate each
// other with a secret in the folder of the credentials.
func (e *Embedded) join(opts *server.Options, c ClusterConfig) error {
	if err := schema.CheckToken("cluster name", c.Name); err != nil {
		return err
	}
	secret, err := e.clusterSecret()
	if err != nil {
		return err
	}
	opts.ServerName = c.Name
	opts.Cluster = server.ClusterOpts{Name: "turngate", Host: "127.0.0.1", Port: c.Port, Advertise: c.Advertise, Username: "turngate", Password: secret}
	// A reload sorts the routes in place while other goroutines of the server read them.
	for _, r := range slices.Sorted(slices.Values(c.Routes)) {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword("turngate", secret), Host: r})
	}
	return nil
}

// URL returns the server's address for clients.
func (e *Embedded) URL() string { return e.srv.ClientURL() }

// Shutdown ends the server and waits until its files are closed.
func (e *Embedded) Shutdown() {
	e.stop()
	e.bg.Wait()
	if e.system != nil {
		e.system.Close()
	}
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}
