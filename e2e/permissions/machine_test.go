package permissions_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestAMachineIsBoundToItself lets the machine m2 publish on subjects of m1, of workers
// and of trainers, and lets the server answer or trace to them. None of these messages
// arrives; a message of a role with the right to publish there does. Workers are bound to
// their names on the subjects of machines.
func TestAMachineIsBoundToItself(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		ops := role{"ops", "ops"}
		m1, m2, w1, w2, admin, alpha := role{"machine", "m1"}, role{"machine", "m2"}, role{"worker", "w1"}, role{"worker", "w2"}, role{"admin", "admin"}, role{"trainer", "alpha"}
		for _, c := range []struct {
			subject string
			forger  role
			control role // may write it
		}{
			{subjects.MachinePresence("m1"), m2, m1},
			{subjects.MachineUp("m1", "w1", "x"), m2, m1},
			{subjects.MachineDown("m1", "1-a", "w1", "x"), m2, w1},
			{subjects.MachineDown("m2", "1-a", "w1", "x"), m2, w1},
			{subjects.MachineDown("m1", "1-a", "w1", "x"), w2, w1},
			{subjects.MachineDown("m1", "1-a", "w1", "x"), alpha, w1},
			{subjects.MachineDown("m1", "1-a", subjects.AdminClient, "x"), m2, admin},
			{subjects.MachineDown("m1", "1-a", subjects.AdminClient, "x"), w1, admin},
			{subjects.MachineDown("m1", "1-a", subjects.AdminClient, "x"), alpha, admin},
			{subjects.MachineDown("m1", "1-a", subjects.AdminClient, "x"), ops, admin},
			{subjects.MachineUp("m1", subjects.AdminClient, "x"), m2, m1},
			{subjects.MachineUp("m1", "w1", "x"), w2, m1},
			{subjects.MachinePresence("m1"), alpha, m1},
			{subjects.MachinePresence("m1"), w2, m1},
			{"_INBOX.worker.w1.x", m2, admin},
			{subjects.Lease("w1", "i1"), m2, w1},
			{subjects.WorkerControl("w1"), m2, w1},
			{subjects.State("alpha-1"), m2, w1},
			{subjects.Request(0, "alpha"), m2, alpha},
			{subjects.TrainerCancel("alpha"), m2, alpha},
			{"_INBOX.gate.alpha.w1.i1.x", m2, alpha},
			{"$JS.API.STREAM.DELETE.NONE", m2, admin},
			{"anything.else", m2, admin},
		} {
			t.Run(c.subject+" by "+c.forger.String(), func(t *testing.T) {
				heard := w.listen(t, c.subject)
				nc := w.as(t, c.forger)
				forged := []*nats.Msg{{Subject: c.subject, Data: []byte("forged")}}
				if c.forger.kind != "worker" { // see TestWorkersTrustEachOther
					forged = append(forged, &nats.Msg{Subject: "$SYS.REQ.USER.INFO", Reply: c.subject}, message(subjects.MachinePresence("m2"), "x", "Nats-Trace-Dest", c.subject))
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
						t.Errorf("%s published %q on %s", c.forger, m, c.subject)
					}
				}
			})
		}
	})
}
