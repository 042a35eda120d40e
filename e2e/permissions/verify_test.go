package permissions_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestOperationsAreBetweenATrainerAndItsWorker lets w1 answer the operations of a
// verification of alpha. Alpha gets the answers. No other role reads an operation or
// an answer, or sends an operation, and the answer reaches no subject that alpha
// names.
func TestOperationsAreBetweenATrainerAndItsWorker(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		inbox := subjects.GateInbox("alpha", "w1", "i1", [16]byte{5})
		harness.Must(t, w.gates.Unsubscribe()) // w1 itself answers
		w1, alpha := w.as(t, role{"worker", "w1"}), w.as(t, role{"trainer", "alpha"})
		asked := make(chan string, 1000)
		_, err := w1.Subscribe(subjects.GateInboxes("w1", "i1"), func(m *nats.Msg) {
			asked <- string(m.Data)
			_ = m.Respond([]byte("the content of a file"))
		})
		harness.Must(t, err)
		harness.Must(t, w1.Flush())
		others := []role{{"trainer", "beta"}, {"ops", "ops"}, {"worker", "w2"}}
		var deaf []*ear
		for _, who := range others {
			nc := w.as(t, who)
			for _, subject := range []string{">", inbox, "_INBOX.>", "_R_.>"} {
				deaf = append(deaf, listenAs(t, nc, subject))
			}
			harness.Must(t, nc.PublishRequest(inbox, "_INBOX."+who.kind+"."+who.name+".x", []byte("forged by "+who.String())))
			harness.Must(t, nc.Flush())
		}
		m, err := alpha.Request(inbox, []byte("read"), 5*time.Second)
		harness.Must(t, err)
		if string(m.Data) != "the content of a file" {
			t.Errorf("alpha got %q", m.Data)
		}
		if got := <-asked; got != "read" {
			t.Errorf("w1 got %q before alpha's operation", got)
		}
		for _, target := range slices.Concat(targets(), ownTargets()) {
			heard := w.listen(t, target)
			harness.Must(t, alpha.PublishRequest(inbox, target, []byte("read")))
			_, err := alpha.Request(inbox, []byte("read"), 5*time.Second) // answered after the one before
			harness.Must(t, err)
			harness.Must(t, w.admin.Flush())
			for _, m := range heard.list() {
				t.Errorf("the answer to alpha arrived on %s: %q", target, m)
			}
			harness.Must(t, w.admin.Publish(target, []byte(control)))
			heard.await(t, control)
		}
		for i, e := range deaf {
			for _, m := range e.list() {
				if m != control {
					t.Errorf("%s heard %q", others[i/4], m)
				}
			}
		}
	})
}
