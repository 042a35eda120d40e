package permissions_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// hostile are the roles that may try to use up the server.
func hostile() []role { return []role{{"trainer", "alpha"}, {"ops", "ops"}, {"enroll", "host"}} }

// TestConnectionsAreBounded lets a role connect until the server refuses it. Others
// still connect.
func TestConnectionsAreBounded(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, who := range hostile() {
			key, n := w.key(t, who), 0
			for ; n < 2000; n++ {
				nc, err := nats.Connect(w.url, key, nats.NoReconnect(), nats.Timeout(10*time.Second))
				if err != nil {
					if !strings.Contains(strings.ToLower(err.Error()), "maximum account active connections") {
						t.Errorf("%s: connection %d: %v", who, n+1, err)
					}
					break
				}
				t.Cleanup(nc.Close)
			}
			if n < 60 || n == 2000 {
				t.Errorf("%s has %d connections", who, n)
			}
		}
		for _, who := range []role{{"trainer", "beta"}, {"worker", "w1"}, {"admin", "admin"}} {
			harness.Must(t, w.as(t, who).Flush())
		}
	})
}

// TestSubscriptionsAreBounded lets a connection subscribe until the server refuses.
func TestSubscriptionsAreBounded(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, who := range hostile() {
			refused := make(chan error, 1)
			nc, err := nats.Connect(w.url, w.key(t, who), nats.NoReconnect(), nats.CustomInboxPrefix(who.inbox()), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				select {
				case refused <- err:
				default:
				}
			}))
			harness.Must(t, err)
			t.Cleanup(nc.Close)
			for range 5000 {
				if _, err := nc.SubscribeSync(nc.NewInbox()); err != nil {
					break
				}
			}
			_ = nc.Flush()
			select {
			case err := <-refused:
				if !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
					t.Errorf("%s: %v", who, err)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s has 5000 subscriptions", who)
			}
		}
	})
}

// TestAFloodOfRequestsBlocksNoOtherTrainer lets alpha send requests to JetStream from many
// connections, and never read the answers. Beta's submits and reads, repeated as
// clients do, succeed meanwhile.
func TestAFloodOfRequestsBlocksNoOtherTrainer(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		stop := make(chan struct{})
		var floods sync.WaitGroup
		defer floods.Wait()
		defer close(stop)
		connections := map[string]*nats.Conn{} // made before the server is busy
		for _, subject := range []string{"$JS.API.INFO", "$JS.API.STREAM.INFO." + subjects.Queue("alpha"), "$JS.API.STREAM.MSG.GET." + subjects.Records("alpha"), subjects.TrainerOpen("alpha"), subjects.TrainerCancel("alpha")} {
			connections[subject] = w.as(t, role{"trainer", "alpha"})
		}
		beta := w.as(t, role{"trainer", "beta"})
		for subject, nc := range connections {
			floods.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					_ = nc.PublishRequest(subject, nc.NewInbox(), []byte(`{"last_by_subj":"`+subjects.State("alpha-1")+`"}`))
					if n%100 == 0 {
						_ = nc.FlushTimeout(time.Second)
					}
				}
			})
		}
		late := time.After(60 * time.Second)
		for _, m := range []*nats.Msg{
			message(subjects.Request(2, "beta"), "x", "Nats-Msg-Id", "beta-1"),
			message("$JS.API.STREAM.MSG.GET."+subjects.Records("beta"), `{"last_by_subj":"`+subjects.State("beta-1")+`"}`),
			message("$JS.API.STREAM.INFO."+subjects.Queue("beta"), ""),
		} {
			for {
				answer, err := beta.RequestMsg(message(m.Subject, string(m.Data), "Nats-Msg-Id", m.Header.Get("Nats-Msg-Id")), 5*time.Second)
				if err == nil && !strings.Contains(string(answer.Data), `"error"`) {
					break
				}
				select {
				case <-late:
					t.Fatalf("%s is not answered: %v", m.Subject, err)
				default:
				}
			}
		}
	})
}
