package permissions_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestHostsThatEnrollReachTheDeskAlone lets a host without a credential publish on subjects
// of others, and lets others ask and answer in its place. None of these messages arrives; a
// message of a role with the right to publish there does.
func TestHostsThatEnrollReachTheDeskAlone(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		host, desk, admin := role{"enroll", "host"}, role{"desk", "desk"}, role{"admin", "admin"}
		m1, w1, alpha, ops, sys := role{"machine", "m1"}, role{"worker", "w1"}, role{"trainer", "alpha"}, role{"ops", "ops"}, role{"sys", "sys"}
		for _, c := range []struct {
			subject string
			forger  role
			control role // may write it
			hears   role
		}{
			{broker.EnrollInbox + ".x", host, desk, host}, // the answer to another host
			{broker.EnrollInbox + ".x", m1, desk, host},
			{broker.EnrollInbox + ".x", alpha, desk, host},
			{broker.EnrollInbox + ".x", admin, desk, host},
			{subjects.Enroll, m1, host, desk},
			{subjects.Enroll, alpha, host, desk},
			{subjects.Enroll, ops, host, desk},
			{subjects.MachinePresence("m1"), host, m1, admin},
			{subjects.MachinePresence("m1"), desk, m1, admin},
			{subjects.MachineUp("m1", "w1", "x"), host, m1, w1},
			{subjects.MachineDown("m1", "1-a", "w1", "x"), host, w1, m1},
			{subjects.Request(0, "alpha"), host, alpha, admin},
			{subjects.Lease("w1", "i1"), host, w1, admin},
			{subjects.WorkerControl("w1"), desk, admin, w1},
			{"$JS.API.STREAM.DELETE.NONE", host, admin, admin},
			{"turngate.other", host, sys, sys}, // a message on turngate.reload would reload the server
			{"turngate.other", desk, sys, sys},
			{"anything.else", host, admin, admin},
		} {
			t.Run(c.subject+" by "+c.forger.String(), func(t *testing.T) {
				heard := listenAs(t, w.as(t, c.hears), c.subject)
				nc := w.as(t, c.forger)
				forged := []*nats.Msg{{Subject: c.subject, Data: []byte("forged")}, {Subject: "$SYS.REQ.USER.INFO", Reply: c.subject}}
				if c.forger == host {
					forged = append(forged, message(subjects.Enroll, "x", "Nats-Trace-Dest", c.subject))
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
