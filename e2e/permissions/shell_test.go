package permissions_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestShellsAreBetweenOperatorsAndAWorker lets others publish on the subjects of
// operators' commands in sandboxes, and lets the server answer or trace to them. None of
// these messages arrives; a message of a role with the right to publish there does.
// TestListening has the roles that do not receive them.
func TestShellsAreBetweenOperatorsAndAWorker(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		ops, w1, w2, m1, alpha := role{"ops", "ops"}, role{"worker", "w1"}, role{"worker", "w2"}, role{"machine", "m1"}, role{"trainer", "alpha"}
		for _, c := range []struct {
			subject string
			control role
			forgers []role
		}{
			{subjects.ShellDown("w1", "x"), ops, []role{alpha, m1, w1, w2}},
			{subjects.ShellUp("w1", "x"), w1, []role{alpha, m1, w2, ops}},
		} {
			for _, forger := range c.forgers {
				t.Run(c.subject+" by "+forger.String(), func(t *testing.T) {
					heard := w.listen(t, c.subject)
					nc := w.as(t, forger)
					forged := []*nats.Msg{{Subject: c.subject, Data: []byte("forged")}}
					if forger.kind != "worker" { // see TestWorkersTrustEachOther
						forged = append(forged, &nats.Msg{Subject: "$SYS.REQ.USER.INFO", Reply: c.subject})
					}
					if forger == alpha {
						forged = append(forged, message(subjects.TrainerCancel("alpha"), "x", "Nats-Trace-Dest", c.subject))
					}
					for _, forge := range forged {
						harness.Must(t, nc.PublishMsg(forge))
						harness.Must(t, nc.Flush())
					}
					from := w.as(t, c.control)
					harness.Must(t, from.Publish(c.subject, []byte(control)))
					harness.Must(t, from.Flush())
					heard.await(t, control)
					for _, m := range heard.list() {
						if m != control {
							t.Errorf("%s published %q on %s", forger, m, c.subject)
						}
					}
				})
			}
		}
	})
}
