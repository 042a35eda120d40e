package broker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func outcome(j *broker.Job) schema.Result {
	return schema.Result{ID: j.Request.ID, Trainer: j.Request.Trainer, Attempt: j.Attempt, Status: schema.StatusDone}
}

func isFull(err error) bool { return errors.Is(err, broker.ErrQueueFull) }

// queued counts the messages of the queue.
func (b *bench) queued(t testing.TB) uint64 {
	t.Helper()
	s, err := b.js(t).Stream(t.Context(), subjects.StreamRequests)
	must(t, err)
	return s.CachedInfo().State.Msgs
}

func (b *bench) js(t testing.TB) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(b.raw(t, b.server.WorkerCreds(), "_INBOX.test"))
	must(t, err)
	return js
}

// again publishes a request past the server's own window for duplicates.
func (b *bench) again(t testing.TB, id schema.ID) {
	t.Helper()
	r := request(id)
	data, err := schema.Encode(&r)
	must(t, err)
	_, err = b.js(t).PublishMsg(t.Context(), &nats.Msg{Subject: subjects.Request(1, "alpha"), Data: data})
	must(t, err)
}

func (b *bench) state(t testing.TB, id schema.ID) schema.State {
	t.Helper()
	s, err := b.trainer.State(t.Context(), id)
	must(t, err)
	return s
}

func takeFrom(t testing.TB, w *broker.WorkerSide) *broker.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	j, err := w.Take(ctx)
	must(t, err)
	return j
}

// crashing is a worker whose connection can be cut for good: to the others it
// has died without a word, while its process goes on.
func (b *bench) crashing(t testing.TB, wid string) (side *broker.WorkerSide, crash func()) {
	t.Helper()
	br := b.dial(t, b.server.WorkerCreds(), broker.InboxFor("worker", wid))
	side, err := br.WorkerSide(broker.WorkerConfig{Worker: wid, Instance: "i1", Slots: 2, Timing: quick()})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = side.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended; side.Close() })
	return side, br.Close
}

func TestADeadWorkersRolloutIsTakenOver(t *testing.T) {
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.submit(t, request("alpha-1"))
	first := takeFrom(t, dying)
	crash()
	second := b.take(t)
	s := b.state(t, "alpha-1")
	if first.Attempt != 1 || second.Attempt != 2 || s.Tries != 2 || s.Worker != "w1" || s.Status != schema.StatusRunning {
		t.Fatalf("attempts %d and %d, %+v", first.Attempt, second.Attempt, s)
	}
	must(t, second.Done(t.Context(), outcome(second)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := first.Done(ctx, outcome(first)); err == nil {
		t.Fatal("the dead one's result was taken")
	}
	if r, err := b.trainer.Result(t.Context(), "alpha-1"); err != nil || r.Attempt != 2 || b.queued(t) != 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
}

func TestAZombiesResultIsRefusedWhole(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	zombie := b.take(t)
	s := b.state(t, "alpha-1")
	s.Attempt, s.Worker, s.Instance = 2, "w9", "i9" // somebody took over
	data, err := schema.Encode(&s)
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	must(t, err)
	if err := zombie.Done(t.Context(), outcome(zombie)); !errors.Is(err, broker.ErrFenced) {
		t.Fatalf("got %v", err)
	}
	if _, err := b.trainer.Result(t.Context(), "alpha-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("the zombie's result was kept: %v", err)
	}
	if !errors.Is(context.Cause(zombie.Context()), broker.ErrFenced) && zombie.Context().Err() == nil {
		t.Fatal("the zombie does not know")
	}
}

func TestADuplicateOfARunningRolloutIsDropped(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	other := b.workerSide(t, "w2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go other.Take(ctx) //nolint:errcheck // it finds nothing
	b.again(t, "alpha-1")
	eventually(t, "one message", func() bool { return b.queued(t) == 1 })
	must(t, j.Done(t.Context(), outcome(j)))
	b.again(t, "alpha-1") // of a finished one
	eventually(t, "an empty queue", func() bool { return b.queued(t) == 0 })
	if s := b.state(t, "alpha-1"); s.Attempt != 1 {
		t.Fatalf("a duplicate ran: %+v", s)
	}
}

func TestAWorkerThatStartsAgainFreesWhatItHad(t *testing.T) {
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.submit(t, request("alpha-1"))
	takeFrom(t, dying)
	eventually(t, "the presence that lists it", func() bool {
		all, err := b.worker.Workers(t.Context())
		must(t, err)
		for _, p := range all {
			if p.Worker == "w2" && len(p.Running) == 1 {
				return true
			}
		}
		return false
	})
	crash()
	start := time.Now()
	b.workerSide(t, "w2", func(c *broker.WorkerConfig) { c.Instance = "i2" })
	j := b.take(t)
	if took := time.Since(start); j.Attempt != 2 || took > quick().AckWait/2 {
		t.Fatalf("attempt %d after %s", j.Attempt, took)
	}
}

func TestALostAnswerToAClaimSpendsNoTry(t *testing.T) {
	b := newBench(t)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 4, Tries: 1, Worker: "w1", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	must(t, err)
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	if s := b.state(t, "alpha-1"); j.Attempt != 5 || s.Tries != 1 {
		t.Fatalf("got %+v", s)
	}
}

func TestTriesUsedUpByDeadWorkers(t *testing.T) {
	b := newBench(t)
	spent := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 3, Tries: 3, Worker: "gone", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&spent)
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	must(t, err)
	b.submit(t, request("alpha-1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.worker.Take(ctx) //nolint:errcheck // it settles the request
	var r schema.Result
	eventually(t, "a dead result", func() bool { r, err = b.trainer.Result(t.Context(), "alpha-1"); return err == nil })
	if r.Status != schema.StatusDead || r.Attempt != 3 || r.Fault == nil || r.Reward != nil {
		t.Fatalf("got %+v", r)
	}
}

func TestAQueueThatWasLostIsMadeAgain(t *testing.T) {
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.submit(t, request("alpha-1"))
	takeFrom(t, dying)
	s, err := b.js(t).Stream(t.Context(), subjects.StreamRequests)
	must(t, err)
	must(t, s.Purge(t.Context()))
	crash()
	if j := takeFrom(t, b.worker); j.Attempt != 2 {
		t.Fatalf("attempt %d", j.Attempt)
	}
}

func TestAStateWithoutAJobIsGivenBackByTheAudit(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	_, err := b.js(t).Publish(t.Context(), subjects.RequestCopy("alpha-1"), nil)
	must(t, err)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1, Tries: 1, Worker: "w1", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	must(t, err)
	eventually(t, "the state to be given back", func() bool { return b.state(t, "alpha-1").Status == schema.StatusQueued })
	if s := b.state(t, "alpha-1"); s.Tries != 0 || s.Attempt != 1 {
		t.Fatalf("got %+v", s)
	}
}

func TestFinishedRolloutsArePurged(t *testing.T) {
	b := newBench(t)
	b.leave() // the other one is the janitor
	other := b.workerSide(t, "w2", func(c *broker.WorkerConfig) { c.Retention = 400 * time.Millisecond })
	b.submit(t, request("alpha-1"))
	j := takeFrom(t, other)
	must(t, j.Done(t.Context(), outcome(j)))
	b.submit(t, request("alpha-2"))
	running := takeFrom(t, other)
	eventuallyWithin(t, 30*time.Second, "the purge", func() bool {
		_, err := b.trainer.State(t.Context(), "alpha-1")
		return errors.Is(err, broker.ErrNotFound)
	})
	if s := b.state(t, "alpha-2"); s.Attempt != running.Attempt {
		t.Fatalf("got %+v", s)
	}
}

func TestAJobThatIsCutOffIsHeldAndGoesOn(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	j := b.take(t)
	held, changed := j.Held()
	if held {
		t.Fatal("held from the start")
	}
	b.server.Shutdown()
	<-changed
	if held, changed = j.Held(); !held {
		t.Fatal("not held without a lease")
	}
	b.restart(t)
	<-changed
	if j.Context().Err() != nil {
		t.Fatal("a rollout that was still its worker's was ended")
	}
	must(t, j.Done(t.Context(), outcome(j)))
	eventually(t, "the result of attempt 1", func() bool {
		r, err := b.trainer.Result(t.Context(), "alpha-1")
		return err == nil && r.Attempt == 1
	})
}

// A result that cannot be committed for now keeps no other job from being held.
func TestACommitInAnOutageHoldsNobodyUp(t *testing.T) {
	b := newBench(t)
	b.submit(t, request("alpha-1"))
	b.submit(t, request("alpha-2"))
	one, two := b.take(t), b.take(t)
	_, changed := two.Held()
	b.server.Shutdown()
	committed := make(chan error, 1)
	go func() { committed <- one.Done(context.Background(), outcome(one)) }()
	select {
	case <-changed:
	case <-time.After(15 * time.Second):
		t.Error("a job is not held while another's result is on its way")
	}
	b.restart(t)
	must(t, <-committed)
	must(t, two.Done(t.Context(), outcome(two)))
}

// TestAResultWithoutItsState is what a worker leaves that dies between its two
// writes: whoever comes next ends the rollout with that result.
func TestAResultWithoutItsState(t *testing.T) {
	for name, come := range map[string]func(*testing.T, *bench){
		"take-over": func(t *testing.T, b *bench) {
			ctx, cancel := context.WithCancel(t.Context())
			taken := make(chan *broker.Job, 1)
			go func() {
				j, _ := b.worker.Take(ctx)
				taken <- j
			}()
			eventually(t, "the end", func() bool { return b.state(t, "alpha-1").Status.Terminal() })
			cancel()
			if j := <-taken; j != nil {
				t.Errorf("attempt %d began", j.Attempt)
			}
		},
		"cancel": func(t *testing.T, b *bench) {
			eventually(t, "the end", func() bool {
				must(t, b.trainer.Cancel([]schema.ID{"alpha-1"}, "enough"))
				return b.state(t, "alpha-1").Status.Terminal()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			dying, crash := b.crashing(t, "w2")
			b.submit(t, request("alpha-1"))
			r := outcome(takeFrom(t, dying))
			crash()
			r.V = schema.Version
			data, err := schema.Encode(&r)
			must(t, err)
			_, err = b.js(t).Publish(t.Context(), subjects.Result("alpha-1"), data)
			must(t, err)
			come(t, b)
			if s := b.state(t, "alpha-1"); s.Status != schema.StatusDone || s.Attempt != 1 {
				t.Errorf("got %+v", s)
			}
			got, err := b.trainer.Result(t.Context(), "alpha-1")
			must(t, err)
			if got.Status != schema.StatusDone || got.Attempt != 1 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestALateResultIsRefused even when nothing but the claim of its successor
// was written meanwhile.
func TestALateResultIsRefused(t *testing.T) {
	b := newBench(t)
	zombie, cut := b.crashing(t, "w2")
	b.submit(t, request("alpha-1"))
	late := takeFrom(t, zombie)
	s, err := b.js(t).Stream(t.Context(), subjects.StreamRollouts)
	must(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), subjects.State("alpha-1"))
	must(t, err)
	cut()
	second := b.take(t)
	data, err := schema.Encode(&schema.Result{V: schema.Version, ID: "alpha-1", Attempt: late.Attempt, Status: schema.StatusFailed})
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.Result("alpha-1"), data, jetstream.WithExpectLastSequenceForSubject(m.Sequence, subjects.State("alpha-1")))
	if err == nil {
		t.Fatal("a late result was stored")
	}
	must(t, second.Done(t.Context(), outcome(second)))
}
