package permissions_test

import (
	"strings"
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
			{subjects.Presence("w1", "i1"), w1},
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

// workerAPI is a call that the worker w2 tries.
type workerAPI struct {
	api
	control role // may make the call, if w2 may not
}

func workerAPIs() []workerAPI {
	admin, beta, sys := role{"admin", "admin"}, role{"trainer", "beta"}, role{"sys", "sys"}
	records, queue := subjects.Records("beta"), subjects.Queue("beta")
	var out []workerAPI
	for _, a := range []api{
		{name: "account info", subject: "$JS.API.INFO"},
		{name: "user info", subject: "$SYS.REQ.USER.INFO"},
		{name: "stream names", subject: "$JS.API.STREAM.NAMES"},
		{name: "streams", subject: "$JS.API.STREAM.LIST"},
		{name: "stream info", subject: "$JS.API.STREAM.INFO." + records},
		{name: "create a stream", subject: "$JS.API.STREAM.CREATE.W2", body: `{"name":"W2","subjects":["w2"]}`},
		{name: "purge a stream", subject: "$JS.API.STREAM.PURGE.VICTIM"},
		{name: "read a record", subject: "$JS.API.STREAM.MSG.GET." + records, body: `{"last_by_subj":"` + subjects.State("beta-1") + `"}`},
		{name: "delete a message", subject: "$JS.API.STREAM.MSG.DELETE.VICTIM", body: `{"seq":1}`},
		{name: "consumers", subject: "$JS.API.CONSUMER.LIST." + queue},
		{name: "pull from the queue", subject: "$JS.API.CONSUMER.MSG.NEXT." + queue + "." + subjects.ConsumerOf(0), body: `{"batch":1,"no_wait":true}`},
		{name: "a push consumer", subject: "$JS.API.CONSUMER.CREATE.VICTIM.c", body: `{"stream_name":"VICTIM","config":{"name":"c","deliver_subject":"TARGET"}}`, pushed: true},
		{name: "read workers directly", subject: "$JS.API.DIRECT.GET." + subjects.StreamWorkers, body: `{"seq":1}`},
		{name: "submit", subject: subjects.Request(3, "beta"), body: "x"},
		{name: "a lease of its own", subject: subjects.Lease("w2", "i1"), body: "x"},
	} {
		out = append(out, workerAPI{api: a})
	}
	for _, r := range []workerAPI{
		{api{name: "delete a stream", subject: "$JS.API.STREAM.DELETE.VICTIM"}, admin},
		{api{name: "snapshot of a stream", subject: "$JS.API.STREAM.SNAPSHOT.VICTIM", body: `{"deliver_subject":"TARGET"}`}, admin},
		{api{name: "read events directly", subject: "$JS.API.DIRECT.GET." + subjects.StreamEvents, body: `{"seq":1}`}, role{"ops", "ops"}},
		{api{name: "a frame for another worker", subject: subjects.GateInbox("beta", "w1", "i1", [16]byte{6}), body: "x"}, beta},
		{api{name: "ask for a trainer's streams", subject: subjects.TrainerOpen("beta")}, beta},
		{api{name: "a cancel", subject: subjects.TrainerCancel("beta"), body: "x"}, beta},
		{api{name: "the account's connections", subject: "$SYS.REQ.ACCOUNT.PING.CONNZ"}, sys},
		{api{name: "the server's connections", subject: "$SYS.REQ.SERVER.PING.CONNZ"}, sys},
		{api{name: "the server's accounts", subject: "$SYS.REQ.SERVER.PING.ACCOUNTZ"}, sys},
		{api{name: "the server's state", subject: "$SYS.REQ.SERVER.PING.JSZ"}, sys},
	} {
		r.refused = true
		out = append(out, r)
	}
	return out
}

// TestWorkersTrustEachOther lets w2 make each call with each target as the reply
// subject. It pins the limit of a worker's permissions: the server answers a call
// that a worker may make on any subject of the workers' account, but of no other
// account. So docs/security.md claims no protection of workers against a hostile
// worker. Calls that a worker may not make have no effect.
func TestWorkersTrustEachOther(t *testing.T) {
	const ofSystem = "$SYS.ACCOUNT.X.CONNECT"
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		sys, w2 := w.as(t, role{"sys", "sys"}), w.as(t, role{"worker", "w2"})
		for _, a := range workerAPIs() {
			t.Run(a.name, func(t *testing.T) {
				for _, target := range targets() {
					target = strings.Replace(target, "VICTIM", "NONE", 1) // the answer would delete the stream some time later
					w.workerCalls(t, w2, a.api, target, w.admin, !a.refused)
				}
				w.workerCalls(t, w2, a.api, ofSystem, sys, false)
				if a.refused {
					m, err := w.as(t, a.control).Request(a.subject, []byte(strings.ReplaceAll(a.body, "TARGET", "x")), 5*time.Second)
					harness.Must(t, err)
					if strings.Contains(string(m.Data), `"error":{`) {
						t.Errorf("the control failed: %s gets %.300s", a.control, m.Data)
					}
					w.makeVictim(t)
				}
			})
		}
	})
}

// workerCalls lets w2 make one call with a target as the reply subject.
func (w *world) workerCalls(t *testing.T, w2 *nats.Conn, a api, target string, listener *nats.Conn, arrives bool) {
	t.Helper()
	heard := listenAs(t, listener, target)
	if m := a.message(target); a.pushed && arrives {
		answer, err := w2.RequestMsg(m, 10*time.Second)
		harness.Must(t, err)
		if strings.Contains(string(answer.Data), `"error":{`) {
			t.Fatalf("%s with %s: %.300s", a.name, target, answer.Data)
		}
		for i := 0; i < 10 && !heard.within(time.Second); i++ {
			w.makeVictim(t) // a new message wakes the consumer
		}
	} else {
		harness.Must(t, w2.PublishMsg(m))
	}
	w.handled(t, w2, role{"worker", "w2"})
	if arrives {
		t.Logf("waiting for an answer on %s", target)
		heard.first(t) // if it fails, claim this protection in docs/security.md
	}
	harness.Must(t, listener.Flush())
	if got := heard.list(); !arrives && len(got) > 0 {
		t.Errorf("%s with the reply subject %s: %.200q arrived", a.name, target, got)
	}
	if a.pushed {
		_ = w.js.DeleteConsumer(t.Context(), "VICTIM", "c") // fails if the server refused its subject
	}
	if strings.Contains(a.subject, "VICTIM") {
		w.makeVictim(t)
	}
}

// TestAWorkersRightsSuffice is the control of all rows for workers: a worker's
// ordinary operations succeed.
func TestAWorkersRightsSuffice(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		nc := w.as(t, role{"worker", "w1"})
		js, err := jetstream.New(nc)
		harness.Must(t, err)
		for _, subject := range []string{
			subjects.Lease("w1", "i1"), subjects.JanitorLease, subjects.Presence("w1", "i1"), subjects.Hold("alpha"), subjects.State("alpha-1"), subjects.Result("alpha-1"), subjects.RequestCopy("alpha-1"),
			subjects.Request(1, "alpha"), subjects.Parked(1, "x", "alpha-1"), subjects.Requests, subjects.Dead("x", "1"), "rollout.alpha-1.events.log", subjects.ObjectChunks(subjects.ArtifactsBucket("alpha"), "x"),
		} {
			if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
				t.Errorf("publish on %s: %v", subject, err)
			}
		}
	})
}
