package broker

import (
	"errors"
	"fmt"
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
	Log      zerolog.Logger
}

// Embedded is a NATS server in this process: JetStream on disk, loopback only,
// never open without authentication.
type Embedded struct {
	srv  *server.Server
	dir  string
	tids []string
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
	e := &Embedded{dir: c.StateDir, tids: c.Trainers}
	if err := os.MkdirAll(filepath.Join(c.StateDir, "creds"), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
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
		MaxPayload: schema.MaxBody, Nkeys: users,
		NoSigs: true, NoLog: true, DisableShortFirstPing: true,
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

func (e *Embedded) credsFile(name string) string { return filepath.Join(e.dir, "creds", name+".nk") }

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
	seed, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		pair, err := nkeys.CreateUser()
		if err != nil {
			return "", fmt.Errorf("make a NATS credential: %w", err)
		}
		if seed, err = pair.Seed(); err != nil {
			return "", fmt.Errorf("make a NATS credential: %w", err)
		}
		if err := os.WriteFile(file, seed, 0o600); err != nil {
			return "", fmt.Errorf("keep a NATS credential: %w", err)
		}
	} else if err != nil {
		return "", fmt.Errorf("read a NATS credential: %w", err)
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
