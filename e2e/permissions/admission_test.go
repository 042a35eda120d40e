package permissions_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestAdmission adds and removes trainers, workers and machines while the server runs and
// alpha answers calls of w1. No connection is lost, every call gets its whole
// answer, and a removed client is disconnected and refused. While the server
// replaces its accounts it may drop messages between them for a moment, so a call
// without all its frames is made again, as workers do.
func TestAdmission(t *testing.T) {
	testenv.Slow(t)
	srv := testenv.Serve(t, broker.EmbeddedConfig{
		StateDir: filepath.Join(t.TempDir(), "state"), Port: testenv.FreePort(t), Trainers: []string{"alpha"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop(),
	})
	admission(t, &world{url: srv.URL(), keys: srv.Keyring}, func() {
		harness.Must(t, broker.ReloadServers(t.Context(), srv.URL(), srv.SystemCreds()))
	})
}

// TestAdmissionOfANatsServer is TestAdmission for a nats-server: the test writes
// its file again and reloads it by a signal.
func TestAdmissionOfANatsServer(t *testing.T) {
	keys := keyring(t, "alpha")
	port := testenv.FreePort(t)
	f := broker.ServerFile{Listen: "127.0.0.1:" + strconv.Itoa(port), Store: filepath.Join(t.TempDir(), "js")}
	cmd := startServer(t, testenv.NATSServer(t), configFile(t, keys, f, "nats.conf"))
	w := &world{url: "nats://127.0.0.1:" + strconv.Itoa(port), keys: keys}
	awaitServer(t, w.url, keys.AdminCreds())
	if err := broker.ReloadServers(t.Context(), w.url, keys.SystemCreds()); !errors.Is(err, broker.ErrOtherServer) {
		t.Errorf("a reload by turngate: got %v", err)
	}
	admission(t, w, func() {
		configFile(t, keys, f, "nats.conf")
		harness.Must(t, cmd.Process.Signal(syscall.SIGHUP))
	})
}

func admission(t *testing.T, w *world, reload func()) {
	const rounds = 5
	worker, alpha := w.as(t, role{"worker", "w1"}), w.as(t, role{"trainer", "alpha"})
	calls := startCalls(t, worker, alpha)
	for i := range rounds {
		name := fmt.Sprintf("new%d", i)
		harness.Must(t, w.keys.AddTrainer(name, ""))
		harness.Must(t, w.keys.AddWorker(name, ""))
		harness.Must(t, w.keys.AddMachine(name, ""))
		reload()
		for kind, remove := range map[string]func(string) error{"trainer": w.keys.RemoveTrainer, "worker": w.keys.RemoveWorker, "machine": w.keys.RemoveMachine} {
			closed := make(chan struct{})
			nc := connectSoon(t, w.url, keptKey(t, w, kind, name), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
			t.Cleanup(nc.Close)
			again := keptKey(t, w, kind, name)
			before := calls.whole.Load()
			harness.Must(t, remove(name))
			reload()
			select {
			case <-closed:
			case <-time.After(10 * time.Second):
				t.Fatalf("%s %s was removed, and is still connected", kind, name)
			}
			harness.Eventually(t, kind+" "+name+" was removed, and can connect no more", 5*time.Minute, func() bool { // an earlier reload may have closed the connection
				nc, err := nats.Connect(w.url, again)
				if err == nil {
					nc.Close()
				}
				return err != nil
			})
			calls.await(t, before+3)
		}
	}
	calls.stop(t)
	for _, nc := range []*nats.Conn{worker, alpha} {
		if nc.Reconnects != 0 || !nc.IsConnected() {
			t.Errorf("a connection was lost: %d times", nc.Reconnects)
		}
	}
	t.Logf("%d calls of %d frames were whole through %d reloads, %d were made again", calls.whole.Load(), frames, 4*rounds, calls.again.Load())
}

// keptKey is the key of a client, from a copy of its credential that stays.
func keptKey(t *testing.T, w *world, kind, name string) nats.Option {
	t.Helper()
	seed, err := os.ReadFile(w.creds(role{kind, name}))
	harness.Must(t, err)
	file := filepath.Join(t.TempDir(), "seed.nk")
	harness.Must(t, os.WriteFile(file, seed, 0o600))
	key, err := nats.NkeyOptionFromSeed(file)
	harness.Must(t, err)
	return key
}

// connectSoon connects with a key that a reload has just admitted.
func connectSoon(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	var nc *nats.Conn
	harness.Eventually(t, "a connection", 5*time.Minute, func() bool {
		var err error
		nc, err = nats.Connect(url, opts...)
		return err == nil
	})
	return nc
}

// frames is the number of frames of each answer.
const frames = 50

// calling makes calls as a worker does, one after the other, each answered by
// frames on a gate inbox.
type calling struct {
	whole atomic.Int64 // calls with their whole answer
	again atomic.Int64 // calls that were made again
	err   atomic.Pointer[error]
	end   context.CancelFunc
	ended chan struct{}
}

func startCalls(t *testing.T, worker, alpha *nats.Conn) *calling {
	t.Helper()
	_, err := alpha.Subscribe(subjects.CallsOf("alpha", ""), func(m *nats.Msg) {
		for i := range frames {
			_ = alpha.Publish(m.Reply, []byte(strconv.Itoa(i)))
		}
	})
	harness.Must(t, err)
	harness.Must(t, alpha.Flush())
	inbox, err := worker.SubscribeSync("_INBOX.gate.*.w1.i1.*")
	harness.Must(t, err)
	harness.Must(t, worker.Flush())
	ctx, cancel := context.WithCancel(t.Context())
	c := &calling{end: cancel, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for n := 1; ctx.Err() == nil; n++ {
			for try := 0; ; try++ {
				err := oneCall(worker, inbox, n<<4|try)
				if err == nil {
					break
				}
				c.again.Add(1)
				if err = fmt.Errorf("call %d: %w", n, err); try == 5 {
					c.err.Store(&err)
					return
				}
			}
			c.whole.Add(1)
		}
	}()
	return c
}

func oneCall(worker *nats.Conn, inbox *nats.Subscription, n int) error {
	reply := subjects.GateInbox("alpha", "w1", "i1", [16]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	if err := worker.PublishRequest(subjects.Call(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: n}, "0"), reply, []byte("call")); err != nil {
		return err
	}
	for i := range frames {
		m, err := inbox.NextMsg(2 * time.Second)
		for err == nil && m.Subject != reply { // a late frame of a call that was made again
			m, err = inbox.NextMsg(2 * time.Second)
		}
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		if string(m.Data) != strconv.Itoa(i) {
			return fmt.Errorf("frame %d: got %s on %s", i, m.Data, m.Subject)
		}
	}
	return nil
}

func (c *calling) await(t *testing.T, n int64) {
	t.Helper()
	harness.Eventually(t, "the next calls", 5*time.Minute, func() bool {
		if err := c.err.Load(); err != nil {
			t.Fatal(*err)
		}
		return c.whole.Load() >= n
	})
}

func (c *calling) stop(t *testing.T) {
	t.Helper()
	c.end()
	<-c.ended
	if err := c.err.Load(); err != nil {
		t.Error(*err)
	}
}

// TestAWorkerWithAnotherName is refused when it starts, with an error that names
// the cause.
func TestAWorkerWithAnotherName(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	b, err := broker.Dial(t.Context(), broker.Config{URL: n.URL(), Creds: n.AdmitWorker(t, "w1"), Inbox: broker.InboxFor("worker", "w1"), Log: zerolog.Nop()})
	harness.Must(t, err)
	defer b.Close()
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: "w2", Instance: "i1"})
	if err == nil {
		side.Close()
		t.Fatal("it was accepted")
	}
	if !strings.Contains(err.Error(), "w2") || !errors.Is(err, broker.ErrNotAllowed) {
		t.Errorf("got %v", err)
	}
}
