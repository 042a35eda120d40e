package broker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// EmbeddedConfig describes a NATS server in this process.
type EmbeddedConfig struct {
	StateDir string   // JetStream's files and the credentials; made with mode 0700
	Port     int      // on 127.0.0.1; 0 picks a free one
	Trainers []string // one credential each, which may act only as that trainer
	// Relaxed leaves it to the operating system when files reach the disk: a
	// power failure may then lose up to two minutes of what was confirmed. By
	// default requests, states and results are on disk when they are confirmed.
	Relaxed bool
	Cluster ClusterConfig
	Log     zerolog.Logger
}

// ClusterConfig makes a server one of several that keep copies of the streams.
// All of them are on 127.0.0.1; servers of several hosts need a configuration of
// their own.
type ClusterConfig struct {
	Name   string   // of this server, such as n1; empty: no cluster
	Port   int      // for the other servers
	Routes []string // host:port of the others' cluster ports
	Creds  string   // folder of credentials that all servers share; default: the state directory's
}

// Embedded is a NATS server in this process: JetStream on disk, loopback only,
// never open without authentication.
type Embedded struct {
	srv   *server.Server
	creds string
	tids  []string
}

// StartEmbedded starts the server and waits until it takes connections.
// Credentials are generated once and kept in files of mode 0600 under
// <state>/creds: worker.nk, ops.nk and trainer-<name>.nk.
func StartEmbedded(c EmbeddedConfig) (*Embedded, error) {
	for _, tid := range c.Trainers {
		if err := schema.CheckTrainer(tid); err != nil {
			return nil, err
		}
	}
	e := &Embedded{creds: filepath.Join(c.StateDir, "creds"), tids: c.Trainers}
	if c.Cluster.Creds != "" {
		e.creds = c.Cluster.Creds
	}
	for _, dir := range []string{c.StateDir, e.creds} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	users, err := e.users()
	if err != nil {
		return nil, err
	}
	port := c.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	opts := &server.Options{
		ServerName: "turngate", Host: "127.0.0.1", Port: port,
		JetStream: true, StoreDir: filepath.Join(c.StateDir, "nats"),
		MaxPayload: maxPayload, Nkeys: users, SyncAlways: !c.Relaxed,
		NoSigs: true, NoLog: true, DisableShortFirstPing: true,
	}
	if c.Cluster.Name != "" {
		if err := e.join(opts, c.Cluster); err != nil {
			return nil, err
		}
	}
	if e.srv, err = server.NewServer(opts); err != nil {
		return nil, fmt.Errorf("configure the embedded NATS server: %w", err)
	}
	e.srv.SetLoggerV2(serverLog{c.Log}, false, false, false)
	e.srv.Start()
	if !e.srv.ReadyForConnections(20 * time.Second) {
		e.srv.Shutdown()
		return nil, fmt.Errorf("the embedded NATS server did not start on port %d; is it in use, or %s not writable?", c.Port, c.StateDir)
	}
	return e, nil
}

// join makes the server one of a cluster. Its servers know each other by a
// secret beside the credentials.
func (e *Embedded) join(opts *server.Options, c ClusterConfig) error {
	if err := schema.CheckToken("cluster name", c.Name); err != nil {
		return err
	}
	secret, err := loadOrMake(filepath.Join(e.creds, "cluster.secret"), func() ([]byte, error) {
		b := make([]byte, 24)
		_, _ = rand.Read(b) // never fails
		return []byte(hex.EncodeToString(b)), nil
	})
	if err != nil {
		return err
	}
	opts.ServerName = c.Name
	opts.Cluster = server.ClusterOpts{Name: "turngate", Host: "127.0.0.1", Port: c.Port, Username: "turngate", Password: string(secret)}
	for _, r := range c.Routes {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword("turngate", string(secret)), Host: r})
	}
	return nil
}

// loadOrMake reads a secret's file, or makes it; when several processes do so
// at once, one of them wins.
func loadOrMake(file string, make func() ([]byte, error)) ([]byte, error) {
	data, err := os.ReadFile(file)
	if !errors.Is(err, os.ErrNotExist) {
		return data, err
	}
	if data, err = make(); err != nil {
		return nil, err
	}
	part, err := os.CreateTemp(filepath.Dir(file), ".new-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(part.Name())
	if _, err = part.Write(data); err == nil {
		err = part.Close()
	}
	if err == nil {
		err = os.Link(part.Name(), file)
	}
	if err == nil || errors.Is(err, os.ErrExist) {
		return os.ReadFile(file)
	}
	return nil, err
}

// URL is where the server listens.
func (e *Embedded) URL() string { return e.srv.ClientURL() }

// Shutdown ends the server and waits until its files are closed.
func (e *Embedded) Shutdown() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
}

// WorkerCreds is the file with the workers' credential.
func (e *Embedded) WorkerCreds() string { return e.credsFile("worker") }

// OpsCreds is the file with the credential of those who watch.
func (e *Embedded) OpsCreds() string { return e.credsFile("ops") }

// TrainerCreds is the file with one trainer's credential.
func (e *Embedded) TrainerCreds(tid string) string { return e.credsFile("trainer-" + tid) }

func (e *Embedded) credsFile(name string) string { return filepath.Join(e.creds, name+".nk") }

func (e *Embedded) users() ([]*server.NkeyUser, error) {
	type user struct {
		file  string
		perms *server.Permissions
	}
	all := []user{{e.WorkerCreds(), nil}, {e.OpsCreds(), opsPermissions()}}
	for _, tid := range e.tids {
		all = append(all, user{e.TrainerCreds(tid), trainerPermissions(tid)})
	}
	out := make([]*server.NkeyUser, 0, len(all))
	for _, u := range all {
		public, err := loadOrMakeSeed(u.file)
		if err != nil {
			return nil, err
		}
		out = append(out, &server.NkeyUser{Nkey: public, Permissions: u.perms})
	}
	return out, nil
}

// loadOrMakeSeed returns the public key of the seed in file, made if absent.
func loadOrMakeSeed(file string) (string, error) {
	seed, err := loadOrMake(file, func() ([]byte, error) {
		pair, err := nkeys.CreateUser()
		if err != nil {
			return nil, err
		}
		return pair.Seed()
	})
	if err != nil {
		return "", fmt.Errorf("NATS credential %s: %w", file, err)
	}
	pair, err := nkeys.FromSeed(seed)
	if err != nil {
		return "", fmt.Errorf("NATS credential %s: %w", file, err)
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// serverLog passes the server's warnings on.
type serverLog struct{ log zerolog.Logger }

func (l serverLog) Noticef(string, ...any)         {}
func (l serverLog) Debugf(string, ...any)          {}
func (l serverLog) Tracef(string, ...any)          {}
func (l serverLog) Warnf(format string, v ...any)  { l.log.Warn().Msgf("nats-server: "+format, v...) }
func (l serverLog) Errorf(format string, v ...any) { l.log.Error().Msgf("nats-server: "+format, v...) }
func (l serverLog) Fatalf(format string, v ...any) { l.log.Error().Msgf("nats-server: "+format, v...) }
