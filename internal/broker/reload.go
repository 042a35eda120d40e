package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/rawjson"
)

// reloadSubject is the subject on which a server in a process of turngate is asked
// to read its keyring again, in the system account.
const reloadSubject = "turngate.reload"

// reloaded is a server's answer.
type reloaded struct {
	Server string `json:"server"`
	Peers  int    `json:"peers"` // servers of the cluster, this one included
	Error  string `json:"error,omitempty"`
}

// serveReloads answers ReloadServers.
func (e *Embedded) serveReloads() error {
	key, err := nats.NkeyOptionFromSeed(e.SystemCreds())
	if err != nil {
		return fmt.Errorf("read the server's own credential: %w", err)
	}
	if e.system, err = nats.Connect("", key, nats.InProcessServer(e.srv), nats.Name("turngate reload"), nats.MaxReconnects(-1)); err != nil {
		return fmt.Errorf("connect to the embedded NATS server: %w", err)
	}
	_, err = e.system.Subscribe(reloadSubject, func(m *nats.Msg) {
		r := reloaded{Server: e.srv.Name(), Peers: max(len(e.srv.ActivePeers()), 1)}
		if err := e.Reload(); err != nil {
			r.Error = err.Error()
			e.config.Log.Error().Err(err).Msg("the credentials could not be read again")
		}
		if data, err := json.Marshal(&r); err == nil {
			_ = m.Respond(data)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", reloadSubject, err)
	}
	return e.system.Flush()
}

// Errors of ReloadServers.
var (
	ErrNoServer    = errors.New("no server runs there")
	ErrOtherServer = errors.New("the server is not one that turngate runs: print its configuration again with `turngate nats config`, and reload it")
)

// ReloadServers lets the servers that `turngate` runs read their keyring again,
// and returns when all servers of the cluster have done so. url is the address of
// one of them, creds the path of Keyring.SystemCreds. Errors wrap ErrNoServer
// and ErrOtherServer.
func ReloadServers(ctx context.Context, url, creds string) error {
	if _, err := os.Stat(creds); errors.Is(err, os.ErrNotExist) { // the first server makes it
		return fmt.Errorf("%s: no server has used the folder %s yet: %w", ShownURL(url), filepath.Dir(creds), ErrNoServer)
	}
	key, err := nats.NkeyOptionFromSeed(creds)
	if err != nil {
		return fmt.Errorf("read the server's own credential: %w", err)
	}
	nc, err := nats.Connect(url, key, nats.Name("turngate reload"), nats.Timeout(2*time.Second))
	if errors.Is(err, nats.ErrNoServers) {
		return fmt.Errorf("%s: %w", ShownURL(url), ErrNoServer)
	}
	if err != nil {
		return fmt.Errorf("as the system: %w", ConnectError(url, err))
	}
	defer nc.Close()
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err == nil {
		err = nc.PublishRequest(reloadSubject, answers.Subject, nil)
	}
	if err != nil {
		return fmt.Errorf("ask for a reload: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	done, want := map[string]bool{}, 1
	for len(done) < want {
		m, err := answers.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return fmt.Errorf("%s: %w", ShownURL(url), ErrOtherServer)
		}
		if err != nil {
			return fmt.Errorf("ask for a reload: %d of %d servers have answered: %w", len(done), want, err)
		}
		var r reloaded
		if err := json.Unmarshal(m.Data, &r); err != nil {
			return fmt.Errorf("ask for a reload: the server's answer: %w", rawjson.Plain(err))
		}
		if r.Error != "" {
			return fmt.Errorf("reload server %s: %s", r.Server, r.Error)
		}
		done[r.Server], want = true, max(want, r.Peers)
	}
	return nil
}
