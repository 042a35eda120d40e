package permissions_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// targets are the subjects on which a forged message would have an effect: it is
// stored in a stream, or a worker or trainer acts on it.
func targets() []string {
	token := [16]byte{1}
	return []string{
		"$JS.API.STREAM.DELETE.VICTIM", "$JS.API.STREAM.PURGE.VICTIM",
		subjects.State("beta-1"), subjects.Result("beta-1"), subjects.RequestCopy("beta-1"),
		subjects.Request(0, "beta"), subjects.Requests, "rollout.beta-1.events.result", "rollout.beta-1.live.1", "rollout.beta-1.llm.beta.0.1.1", "rollout.beta-1.tool.beta.0.1.1", "rollout.beta-1.verify.beta.0.1.1",
		subjects.Lease("w1", "i1"), subjects.JanitorLease, subjects.Presence("w1", "i1"), subjects.Hold("beta"),
		subjects.ObjectChunks(subjects.TasksBucket("beta"), "x"), subjects.ObjectMeta(subjects.TasksBucket("beta"), "x"), subjects.ObjectChunks(subjects.ArtifactsBucket("beta"), "x"),
		"_INBOX.worker.w1.x", subjects.WorkerControl("w1"), subjects.WorkerStatus("w1"), subjects.WorkerTrainers,
		subjects.TrainerCancel("beta"), subjects.TrainerHold("beta"), subjects.TrainerOpen("beta"), subjects.TrainerAttach("beta"), subjects.Process("beta", "0"), subjects.ProcessInbox("beta", "f00d"), subjects.TrainerFleet("beta"), subjects.TrainerResults("beta"), subjects.TrainerEvents("beta"),
		subjects.GateInbox("beta", "w1", "i1", token), subjects.Dead("x", "1"),
	}
}

// own are the subjects that alpha reaches by design: a forged message there harms
// alpha alone.
func ownTargets() []string {
	return []string{subjects.State("alpha-1"), subjects.Result("alpha-1"), subjects.ObjectChunks(subjects.ArtifactsBucket("alpha"), "x"), "rollout.alpha-1.llm.alpha.0.1.1"}
}

// api is one way to let the server, a worker or the client itself publish.
type api struct {
	name    string
	subject string // of the request
	body    string
	// direct publishes on the target itself; traced sends the trace of a message
	// there; batched opens an atomic batch, which the server confirms with an empty
	// answer; pushed lets a consumer deliver there.
	direct, traced, batched, pushed bool
	// refused says that the role may not use this call at all.
	refused bool
}

// message returns the message that aims at a target.
func (a api) message(target string) *nats.Msg {
	m := &nats.Msg{Subject: a.subject, Reply: target, Data: []byte(strings.ReplaceAll(a.body, "TARGET", target)), Header: nats.Header{}}
	switch {
	case a.direct:
		m.Subject, m.Reply, m.Data = target, "", []byte("forged")
	case a.traced:
		m.Reply = ""
		m.Header.Set("Nats-Trace-Dest", target)
	case a.pushed:
		m.Reply = ""
	case a.batched:
		m.Header.Set("Nats-Batch-Id", strings.ReplaceAll(target, ".", "-")[:min(20, len(target))])
		m.Header.Set("Nats-Batch-Sequence", "1")
	}
	return m
}

func trainerAPIs() []api {
	token := [16]byte{2}
	records, queue := subjects.Records("alpha"), subjects.Queue("alpha")
	return []api{
		{name: "publish", direct: true},
		{name: "submit", subject: subjects.Request(3, "alpha"), body: "x"},
		{name: "open a batch", subject: subjects.Request(3, "alpha"), body: "x", batched: true},
		{name: "trace a submit", subject: subjects.Request(3, "alpha"), body: "x", traced: true},
		{name: "account info", subject: "$JS.API.INFO"},
		{name: "user info", subject: "$SYS.REQ.USER.INFO"},
		{name: "stream info of records", subject: "$JS.API.STREAM.INFO." + records},
		{name: "stream info of the queue", subject: "$JS.API.STREAM.INFO." + queue},
		{name: "read a record", subject: "$JS.API.STREAM.MSG.GET." + records, body: `{"last_by_subj":"` + subjects.State("alpha-1") + `"}`},
		{name: "read a bundle", subject: "$JS.API.STREAM.MSG.GET." + subjects.ObjectStream(subjects.TasksBucket("alpha")), body: `{"seq":1}`},
		{name: "store a bundle", subject: subjects.ObjectChunks(subjects.TasksBucket("alpha"), "y"), body: "x"},
		{name: "ask for its streams", subject: subjects.TrainerOpen("alpha")},
		{name: "ask for its calls", subject: subjects.TrainerAttach("alpha"), body: "x"},
		{name: "ask another process", subject: subjects.ProcessInbox("alpha", "f00d"), body: "x"},
		{name: "ask for the fleet", subject: subjects.TrainerFleet("alpha")},
		{name: "cancel", subject: subjects.TrainerCancel("alpha"), body: "x"},
		{name: "hold", subject: subjects.TrainerHold("alpha"), body: "x"},
		{name: "a frame with a reply", subject: subjects.GateInbox("alpha", "w1", "i1", token), body: "x"},
		{name: "direct get", subject: "$JS.API.DIRECT.GET." + subjects.StreamEvents, body: `{"seq":1}`, refused: true},
		{name: "a consumer", subject: "$JS.API.CONSUMER.CREATE." + records + ".c", body: `{"stream_name":"` + records + `","config":{"name":"c","deliver_subject":"TARGET"}}`, pushed: true, refused: true},
	}
}

func opsAPIs() []api {
	return []api{
		{name: "publish", direct: true},
		{name: "account info", subject: "$JS.API.INFO"},
		{name: "user info", subject: "$SYS.REQ.USER.INFO"},
		{name: "stream names", subject: "$JS.API.STREAM.NAMES"},
		{name: "stream info", subject: "$JS.API.STREAM.INFO." + subjects.StreamEvents},
		{name: "read a record", subject: "$JS.API.STREAM.MSG.GET." + subjects.Records("alpha"), body: `{"last_by_subj":"` + subjects.State("alpha-1") + `"}`},
		{name: "read events", subject: "$JS.API.DIRECT.GET." + subjects.StreamEvents, body: `{"seq":1,"next_by_subj":"rollout.*.events.*","batch":10}`},
		{name: "list the consumers of a queue", subject: "$JS.API.CONSUMER.LIST." + subjects.Queue("alpha"), body: `{}`},
		{name: "read a queue", subject: "$JS.API.STREAM.MSG.GET." + subjects.Queue("alpha"), body: `{"seq":1}`},
		{name: "read a hold", subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamControl, body: `{"seq":1,"next_by_subj":"$KV.control.>"}`},
		{name: "trace a read", subject: "$JS.API.INFO", traced: true},
		{name: "a push consumer", subject: "$JS.API.CONSUMER.CREATE." + subjects.StreamEvents + ".c", body: `{"stream_name":"EVENTS","config":{"name":"c","deliver_subject":"TARGET"}}`, pushed: true, refused: true},
		{name: "delete a stream", subject: "$JS.API.STREAM.DELETE.VICTIM", refused: true},
		{name: "purge a stream", subject: "$JS.API.STREAM.PURGE.VICTIM", refused: true},
	}
}

// TestForgeries lets each role use each of its calls with each target as the
// reply subject. Nothing may arrive there. For each target the admin's own message
// does arrive, so that the listener works.
func TestForgeries(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		harness.Must(t, w.fill(t))
		for _, c := range []struct {
			who  role
			apis []api
			to   []string
		}{
			{role{"trainer", "alpha"}, trainerAPIs(), slices.Concat(targets(), ownTargets())},
			{role{"ops", "ops"}, opsAPIs(), slices.Concat(targets(), ownTargets())},
		} {
			for _, target := range c.to {
				t.Run(c.who.kind+"/"+target, func(t *testing.T) { w.forge(t, c.who, c.apis, target) })
			}
		}
	})
}

// fill stores a record, an event and a bundle, so that reads have an answer, and
// makes the stream that attackers would delete.
func (w *world) fill(t *testing.T) error {
	t.Helper()
	w.makeVictim(t)
	for _, subject := range []string{subjects.State("alpha-1"), subjects.State("beta-1"), subjects.Result("beta-1"), subjects.Hold("alpha"), "rollout.alpha-1.events.log", subjects.ObjectChunks(subjects.TasksBucket("alpha"), "x"), subjects.ObjectChunks(subjects.TasksBucket("beta"), "x")} {
		if _, err := w.js.Publish(t.Context(), subject, []byte("secret of "+subject)); err != nil {
			return err
		}
	}
	return nil
}

const control = "the admin's own message"

// forge tries one target.
func (w *world) forge(t *testing.T, who role, apis []api, target string) {
	t.Helper()
	heard := w.listen(t, target)
	attacker := w.as(t, who)
	for _, a := range apis {
		harness.Must(t, attacker.PublishMsg(a.message(target)))
		if len(heard.list()) > 0 {
			t.Errorf("%s: %s with the reply subject %s: it arrived", who, a.name, target)
		}
	}
	w.handled(t, attacker, who)
	for _, m := range heard.list() {
		t.Errorf("%s published on %s: %.200q", who, target, m)
	}
	// The control: the listener hears a message that may be there.
	if strings.HasPrefix(target, "$JS.API.STREAM.") {
		w.controlOfStream(t, target)
		return
	}
	harness.Must(t, w.admin.Publish(target, []byte(control)))
	heard.await(t, control)
}

// handled returns when the server has handled all that the attacker sent: an
// answer to a request of its own comes after all others.
func (w *world) handled(t *testing.T, attacker *nats.Conn, who role) {
	t.Helper()
	stream := subjects.StreamEvents
	if who.kind == "trainer" {
		stream = subjects.Queue(who.name)
	}
	for range 2 { // the second is sent after the answers to all earlier messages
		if _, err := attacker.Request("$JS.API.STREAM.INFO."+stream, nil, 5*time.Second); err != nil {
			t.Fatalf("%s: the server does not answer what is allowed: %v", who, err)
		}
		harness.Must(t, w.admin.Flush())
	}
}

// controlOfStream checks that the call which the attack aimed at has the effect
// when the admin makes it, and that the stream had survived until then.
func (w *world) controlOfStream(t *testing.T, target string) {
	t.Helper()
	s, err := w.js.Stream(t.Context(), "VICTIM")
	harness.Must(t, err)
	if n := s.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("the stream has %d messages, want 1", n)
	}
	_, err = w.admin.Request(target, nil, 5*time.Second)
	harness.Must(t, err)
	if strings.Contains(target, "DELETE") {
		if _, err := w.js.Stream(t.Context(), "VICTIM"); err == nil {
			t.Error("the admin's own call did not delete the stream: the check sees nothing")
		}
	} else {
		s, err = w.js.Stream(t.Context(), "VICTIM")
		harness.Must(t, err)
		if n := s.CachedInfo().State.Msgs; n != 0 {
			t.Error("the admin's own call did not purge the stream: the check sees nothing")
		}
	}
	w.makeVictim(t)
}

// ear keeps the messages that arrived on a subject of the workers' account.
type ear struct {
	mu    sync.Mutex
	heard []string
	news  chan struct{}
}

// listen subscribes to a subject in the workers' account. Every effect begins in
// this account: it has the streams, and it exports the calls to trainers.
func (w *world) listen(t *testing.T, subject string) *ear {
	t.Helper()
	return listenAs(t, w.admin, subject)
}

func listenAs(t *testing.T, nc *nats.Conn, subject string) *ear {
	t.Helper()
	e := &ear{news: make(chan struct{}, 1)}
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		e.mu.Lock()
		e.heard = append(e.heard, string(m.Data))
		e.mu.Unlock()
		select {
		case e.news <- struct{}{}:
		default:
		}
	})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return e
}

func (e *ear) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

// await waits until a message has arrived.
func (e *ear) await(t *testing.T, want string) {
	t.Helper()
	late := time.After(10 * time.Second)
	for !slices.Contains(e.list(), want) {
		select {
		case <-e.news:
		case <-late:
			t.Fatalf("%q was not heard: the listener does not work", want)
		}
	}
}
