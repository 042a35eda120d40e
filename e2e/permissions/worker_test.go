package permissions_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestAWorkerIsBoundToItsName lets the worker w2 publish on subjects of w1 and on
// subjects without an owner. None of these messages arrives; a message of a role
// with the right to publish there does.
func TestAWorkerIsBoundToItsName(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		w1, w2 := role{"worker", "w1"}, role{"worker", "w2"}
		token := [16]byte{4}
		for _, c := range []struct {
			subject string
			control role // may write it
		}{
			{subjects.Lease("w1", "i1"), w1},
			{subjects.Presence("w1"), w1},
			{subjects.WorkerStatus("w1"), w1},
			{subjects.GateInbox("alpha", "w1", "i1", token), role{"trainer", "alpha"}},
			{"_INBOX.worker.w1.x", role{"admin", "admin"}},
			{subjects.TrainerCancel("alpha"), role{"trainer", "alpha"}},
			{subjects.TrainerHold("alpha"), role{"trainer", "alpha"}},
			{"$JS.API.STREAM.DELETE.NONE", role{"admin", "admin"}},
			{"$JS.API.STREAM.SNAPSHOT.NONE", role{"admin", "admin"}},
			{"$JS.API.STREAM.RESTORE.NONE", role{"admin", "admin"}},
			{"$JS.API.DIRECT.GET." + subjects.StreamEvents, role{"admin", "admin"}},
			{"anything.else", role{"admin", "admin"}},
		} {
			t.Run(c.subject, func(t *testing.T) {
				heard := w.listen(t, c.subject)
				for _, forge := range []*nats.Msg{{Subject: c.subject, Data: []byte("forged")}, message("worker.w2.status", "x", "Nats-Trace-Dest", c.subject)} {
					nc := w.as(t, w2)
					harness.Must(t, nc.PublishMsg(forge))
					harness.Must(t, nc.Flush())
				}
				nc := w.as(t, c.control)
				harness.Must(t, nc.Publish(c.subject, []byte(control)))
				harness.Must(t, nc.Flush())
				heard.await(t, control)
				for _, m := range heard.list() {
					if m != control {
						t.Errorf("w2 published %q on %s", m, c.subject)
					}
				}
			})
		}
	})
}

// TestWorkersTrustEachOther pins the limit of a worker's permissions: the server
// answers a request of the workers' own account on any subject of it. So
// docs/security.md claims no protection of workers against a hostile worker.
func TestWorkersTrustEachOther(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		target := subjects.Lease("w1", "i1")
		heard := w.listen(t, target)
		nc := w.as(t, role{"worker", "w2"})
		harness.Must(t, nc.PublishRequest("$JS.API.INFO", target, nil))
		harness.Must(t, nc.Flush())
		late := time.After(10 * time.Second)
		for len(heard.list()) == 0 {
			select {
			case <-heard.news:
			case <-late:
				t.Fatal("the server's answer did not arrive: claim this protection in docs/security.md, and test it")
			}
		}
	})
}

// TestAWorkersRightsSuffice is the control of all rows for workers: a worker's
// ordinary operations succeed.
func TestAWorkersRightsSuffice(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		nc := w.as(t, role{"worker", "w1"})
		js, err := jetstream.New(nc)
		harness.Must(t, err)
		for _, subject := range []string{
			subjects.Lease("w1", "i1"), subjects.JanitorLease, subjects.Presence("w1"), subjects.Hold("alpha"), subjects.State("alpha-1"), subjects.Result("alpha-1"), subjects.RequestCopy("alpha-1"),
			subjects.Request(1, "alpha"), subjects.Parked(1, "x", "alpha-1"), subjects.Requests, subjects.Dead("x", "1", 1), "rollout.alpha-1.events.log", subjects.ObjectChunks(subjects.ArtifactsBucket("alpha"), "x"),
		} {
			if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
				t.Errorf("publish on %s: %v", subject, err)
			}
		}
	})
}
