package permissions_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// request is a request that one role may make and other roles may not.
type request struct {
	name    string
	subject string
	body    string
	allowed role // the control: it gets a good answer
	refused []role
}

func requests() []request {
	alpha, beta, ops, w1 := role{"trainer", "alpha"}, role{"trainer", "beta"}, role{"ops", "ops"}, role{"worker", "w1"}
	admin := role{"admin", "admin"}
	var out []request
	for _, stream := range subjects.StreamsOf("beta") {
		out = append(out, request{name: "describe " + stream, subject: "$JS.API.STREAM.INFO." + stream, allowed: beta, refused: []role{alpha}})
	}
	bundles, artifacts := subjects.ObjectStream(subjects.TasksBucket("beta")), subjects.ObjectStream(subjects.ArtifactsBucket("beta"))
	state := `{"last_by_subj":"` + subjects.State("beta-1") + `"}`
	out = append(out, []request{
		{name: "read a foreign state", subject: "$JS.API.STREAM.MSG.GET." + subjects.Records("beta"), body: state, allowed: beta, refused: []role{alpha}},
		{name: "read a foreign result by sequence", subject: "$JS.API.STREAM.MSG.GET." + subjects.Records("beta"), body: `{"seq":2}`, allowed: beta, refused: []role{alpha}},
		{name: "read a foreign request", subject: "$JS.API.STREAM.MSG.GET." + subjects.Queue("beta"), body: `{"seq":1}`, allowed: ops, refused: []role{alpha}},
		{name: "read a foreign bundle", subject: "$JS.API.STREAM.MSG.GET." + bundles, body: `{"seq":1}`, allowed: beta, refused: []role{alpha, ops}},
		{name: "read a foreign artifact", subject: "$JS.API.STREAM.MSG.GET." + artifacts, body: `{"seq":1}`, allowed: beta, refused: []role{alpha, ops}},
		{name: "read events", subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamEvents, body: `{"seq":1}`, allowed: w1, refused: []role{alpha, ops}},
		{name: "read events directly", subject: "$JS.API.DIRECT.GET." + subjects.StreamEvents, body: `{"seq":1}`, allowed: ops, refused: []role{alpha, w1}},
		{name: "read all records", subject: "$JS.API.STREAM.MSG.GET." + subjects.Records("beta"), body: state, allowed: ops, refused: []role{alpha}},
		{name: "read dead messages", subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamDead, body: `{"seq":1}`, allowed: ops, refused: []role{alpha}},
		{name: "read leases", subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamLeases, body: `{"last_by_subj":"` + subjects.Lease("w1", "i1") + `"}`, allowed: w1, refused: []role{alpha, ops}},
		{name: "read holds and processes of trainers", subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamControl, body: `{"last_by_subj":"` + subjects.Hold("beta") + `"}`, allowed: ops, refused: []role{alpha}},
		{name: "list streams", subject: "$JS.API.STREAM.NAMES", allowed: ops, refused: []role{alpha}},
		{name: "create a stream", subject: "$JS.API.STREAM.CREATE.NEW", body: `{"name":"NEW","subjects":["new"]}`, allowed: admin, refused: []role{alpha, ops}},
		{name: "change the own queue", subject: "$JS.API.STREAM.UPDATE." + subjects.Queue("alpha"), body: `{"name":"REQ_alpha","subjects":["rollout.requests.p0.alpha","rollout.requests.p1.alpha","rollout.requests.p2.alpha","rollout.requests.p3.alpha","parked.alpha.>"],"retention":"workqueue","discard":"new","storage":"file","num_replicas":1,"max_msgs":5,"allow_atomic":true,"duplicate_window":120000000000}`, allowed: admin, refused: []role{alpha, ops}},
		{name: "delete the own records", subject: "$JS.API.STREAM.MSG.DELETE." + subjects.Records("alpha"), body: `{"seq":1}`, allowed: admin, refused: []role{alpha, ops}},
		{name: "pull from the queue", subject: "$JS.API.CONSUMER.INFO." + subjects.Queue("alpha") + "." + subjects.ConsumerOf(0), allowed: w1, refused: []role{alpha, ops}},
		{name: "list the consumers of the queue", subject: "$JS.API.CONSUMER.LIST." + subjects.Queue("alpha"), body: `{}`, allowed: ops, refused: []role{alpha}},
		{name: "park a request", subject: subjects.Parked(2, "x", "alpha-2"), allowed: w1, refused: []role{alpha, ops}},
		{name: "delete a stream", subject: "$JS.API.STREAM.DELETE.NEW", allowed: admin, refused: []role{alpha, ops, w1}},
		{name: "read the server's users", subject: "$SYS.REQ.ACCOUNT.PING.CONNZ", allowed: role{"sys", "sys"}, refused: []role{alpha, ops, w1}},
		{name: "read the server's connections", subject: "$SYS.REQ.SERVER.PING.CONNZ", allowed: role{"sys", "sys"}, refused: []role{alpha, ops, w1}},
	}...)
	return out
}

// TestRequests tries each call with the roles that may not use it. They get no
// answer; the role that may use it gets one.
func TestRequests(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		for _, subject := range []string{subjects.Request(0, "beta"), subjects.Request(0, "alpha"), subjects.ObjectChunks(subjects.ArtifactsBucket("beta"), "x"), subjects.Dead("x", "1"), subjects.Lease("w1", "i1"), subjects.Hold("beta")} {
			_, err := w.js.Publish(t.Context(), subject, []byte("secret of "+subject))
			harness.Must(t, err)
		}
		for _, r := range requests() {
			t.Run(r.name, func(t *testing.T) {
				for _, who := range append(r.refused, role{"enroll", "host"}) {
					if m := w.ask(t, who, r); m != nil {
						t.Errorf("%s got an answer on %s: %.200s", who, r.subject, m.Data)
					}
				}
				m, err := w.as(t, r.allowed).Request(r.subject, []byte(r.body), 5*time.Second)
				harness.Must(t, err)
				var answer struct {
					Error json.RawMessage `json:"error"`
				}
				if _ = json.Unmarshal(m.Data, &answer); answer.Error != nil || m.Header.Get("Status") != "" {
					t.Errorf("the control failed: %s is answered %s %s", r.allowed, m.Header.Get("Status"), m.Data)
				}
			})
		}
	})
}

// ask makes a request that must not be answered, and returns its answer if there
// is one. The server refuses most of them, which the client knows at once.
func (w *world) ask(t *testing.T, who role, r request) *nats.Msg {
	t.Helper()
	nc := w.as(t, who)
	answers, err := nc.SubscribeSync(nc.NewInbox())
	harness.Must(t, err)
	harness.Must(t, nc.PublishRequest(r.subject, answers.Subject, []byte(r.body)))
	harness.Must(t, nc.Flush())
	wait := 200 * time.Millisecond
	if errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		wait = 5 * time.Millisecond
	}
	if m, err := answers.NextMsg(wait); err == nil && m.Header.Get("Status") == "" {
		return m
	}
	return nil
}

// TestForeignSubjectsOfTheOwnStream checks that a trainer's reads of its own
// records find nothing of others.
func TestForeignSubjectsOfTheOwnStream(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		alpha := w.as(t, role{"trainer", "alpha"})
		get := func(subject string) string {
			m, err := alpha.Request("$JS.API.STREAM.MSG.GET."+subjects.Records("alpha"), []byte(`{"last_by_subj":"`+subject+`"}`), 5*time.Second)
			harness.Must(t, err)
			return string(m.Data)
		}
		if got := get(subjects.State("beta-1")); !strings.Contains(got, "10037") { // no message found
			t.Errorf("a foreign state was read: %s", got)
		}
		if got := get(subjects.State("alpha-1")); !strings.Contains(got, `"message"`) {
			t.Errorf("the control failed: %s", got)
		}
	})
}

// hearing is a message that one role receives and other roles do not.
type hearing struct {
	publish string // subject of the message
	by      role
	listen  string // the subject to which all roles below subscribe
	allowed role
	refused []role
}

func hearings() []hearing {
	alpha, beta, ops := role{"trainer", "alpha"}, role{"trainer", "beta"}, role{"ops", "ops"}
	w1, w2, admin, sys := role{"worker", "w1"}, role{"worker", "w2"}, role{"admin", "admin"}, role{"sys", "sys"}
	m1, m2 := role{"machine", "m1"}, role{"machine", "m2"}
	enroll, desk := role{"enroll", "host"}, role{"desk", "desk"}
	token := [16]byte{3}
	all := []hearing{
		{subjects.MachinePresence("m1"), m1, subjects.MachinesFilter, w1, []role{alpha, ops, m2}},
		{subjects.MachineDown("m1", "1-a", "w1", "x"), w1, subjects.MachineDownOf("m1"), m1, []role{alpha, ops, w2, m2}},
		{subjects.MachineDown("m1", "1-a", subjects.AdminClient, "x"), admin, subjects.MachineDownOf("m1"), m1, []role{alpha, ops, w1, w2, m2}},
		{subjects.MachineUp("m1", subjects.AdminClient, "x"), m1, subjects.MachineUpTo(subjects.AdminClient), admin, []role{alpha, ops, w1, w2, m2}},
		{subjects.MachineUp("m1", "w1", "x"), m1, subjects.MachineUpTo("w1"), w1, []role{alpha, ops, w2, m2}},
		{"rollout.beta-1.llm.beta.0.1.1", w1, "rollout.*.llm.beta.>", beta, []role{alpha, ops, w2}},
		{"rollout.beta-1.tool.beta.0.1.1", w1, "rollout.*.tool.beta.>", beta, []role{alpha, ops, w2}},
		{"rollout.beta-1.verify.beta.0.1.1", w1, "rollout.*.verify.beta.>", beta, []role{alpha, ops, w2}},
		{subjects.TrainerResults("beta"), w1, subjects.TrainerResults("beta"), beta, []role{alpha, w2}},
		{subjects.TrainerEvents("beta"), w1, subjects.TrainerEvents("beta"), beta, []role{alpha, ops, w2}},
		{"rollout.beta-1.events.log", w1, "rollout.*.events.>", ops, []role{alpha, beta, w2}},
		{"rollout.beta-1.live.1", w1, "rollout.*.live.>", ops, []role{alpha, beta, w2}},
		{subjects.WorkerStatus("w1"), w1, subjects.WorkerStatus("w1"), ops, []role{alpha, w2}},
		{subjects.TrainerResults("beta"), w1, subjects.TrainerResults("*"), ops, []role{alpha, w2}},
		{subjects.ShellDown("w1", "x"), ops, subjects.ShellDown("w1", "*"), w1, []role{alpha, w2}},
		{subjects.ShellUp("w1", "x"), w1, subjects.ShellUp("w1", "*"), ops, []role{alpha, beta, w2}},
		{subjects.WorkerControl("w1"), w2, subjects.WorkerControl("w1"), w1, []role{alpha, ops, w2}},
		{subjects.GateInbox("beta", "w1", "i1", token), beta, "_INBOX.gate.*.w1.>", w1, []role{alpha, ops, w2}},
		{subjects.GateInbox("beta", "w1", "i1", token), beta, subjects.GateFrames("beta"), beta, []role{alpha, ops, w2}},
		{"_INBOX.worker.w1.x", admin, "_INBOX.worker.w1.>", w1, []role{alpha, ops, w2}},
		{subjects.Request(0, "beta"), beta, "rollout.requests.>", admin, []role{alpha, ops, w2}},
		{subjects.State("beta-1"), w1, "record.>", admin, []role{alpha, beta, ops, w2}},
		{subjects.ObjectChunks(subjects.TasksBucket("beta"), "x"), beta, "$O.>", admin, []role{alpha, ops, w2}},
		{subjects.Lease("w1", "i1"), w1, "$KV.lease.>", admin, []role{alpha, ops, w2}},
		{subjects.Enroll, enroll, subjects.Enroll, desk, []role{alpha, ops, w1, admin}},
		{broker.EnrollInbox + ".x", desk, broker.EnrollInbox + ".*", enroll, []role{alpha, ops, w1, admin}},
		{"$SYS.ACCOUNT.X.CONNECT", sys, "$SYS.>", sys, []role{alpha, ops, w1, admin}},
	}
	for i, h := range all {
		if !strings.Contains(h.publish, "machine.") || h.publish == subjects.Enroll {
			all[i].refused = append(h.refused, m1)
		}
		if h.allowed != enroll {
			all[i].refused = append(all[i].refused, enroll)
		}
	}
	return all
}

// TestListening subscribes with the refused roles, to the subject and to all
// subjects. They receive nothing; the allowed role receives the message.
func TestListening(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, h := range hearings() {
			t.Run(h.publish+" as "+h.listen, func(t *testing.T) {
				var deaf []*ear
				var conns []*nats.Conn
				for _, who := range h.refused {
					nc := w.as(t, who)
					conns = append(conns, nc)
					deaf = append(deaf, listenAs(t, nc, h.listen), listenAs(t, nc, ">"), listenAs(t, nc, h.publish))
				}
				hears := listenAs(t, w.as(t, h.allowed), h.listen)
				from := w.as(t, h.by)
				harness.Must(t, from.Publish(h.publish, []byte(control)))
				harness.Must(t, from.Flush())
				hears.await(t, control)
				for i, e := range deaf {
					harness.Must(t, conns[i/3].Flush()) // earlier messages have arrived
					for _, m := range e.list() {
						t.Errorf("%s heard %q on %s", h.refused[i/3], m, h.publish)
					}
				}
			})
		}
	})
}
