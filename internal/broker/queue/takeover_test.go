package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func outcome(j *queue.Job) schema.Result {
	return schema.Result{ID: j.Request.ID, Trainer: j.Request.Trainer, Attempt: j.Attempt, Status: schema.StatusDone}
}

func isFull(err error) bool { return errors.Is(err, queue.ErrQueueFull) }

// queued counts the messages of the queue.
func (b *bench) queued(t testing.TB) uint64 {
	t.Helper()
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	return s.CachedInfo().State.Msgs
}

// again publishes a request without a message id, so that the server does not
// drop it as a duplicate.
func (b *bench) again(t testing.TB, id schema.ID) {
	t.Helper()
	r := harness.Request(id)
	data, err := schema.Encode(&r)
	harness.Must(t, err)
	_, err = b.JetStream(t).PublishMsg(t.Context(), &nats.Msg{Subject: subjects.Request(1, "alpha"), Data: data})
	harness.Must(t, err)
}

func (b *bench) state(t testing.TB, id schema.ID) schema.State {
	t.Helper()
	s, err := b.Trainer.Records.State(t.Context(), id)
	harness.Must(t, err)
	return s
}

func takeFrom(t testing.TB, w *queue.Worker) *queue.Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	j, err := w.Take(ctx)
	harness.Must(t, err)
	return j
}

// crashing is a worker with a connection that the test can cut for good. For the
// other workers it has then crashed, while its process goes on.
func (b *bench) crashing(t testing.TB, wid string, change ...func(*queue.WorkerConfig)) (side *queue.Worker, crash func()) {
	t.Helper()
	br := b.Dial(t, testenv.AdmitWorker(t, b.Server, wid), broker.InboxFor("worker", wid))
	c := queue.WorkerConfig{Worker: wid, Instance: "i1", Slots: 2, Timing: testenv.Quick()}
	for _, f := range change {
		f(&c)
	}
	side, err := queue.NewWorker(br, c)
	harness.Must(t, err)
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
	t.Parallel()
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-1"))
	first := takeFrom(t, dying)
	crash()
	second := b.Take(t)
	s := b.state(t, "alpha-1")
	if first.Attempt != 1 || second.Attempt != 2 || s.Tries != 2 || s.Worker != "w1" || s.Status != schema.StatusRunning {
		t.Fatalf("attempts %d and %d, %+v", first.Attempt, second.Attempt, s)
	}
	harness.Must(t, second.Done(t.Context(), outcome(second)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := first.Done(ctx, outcome(first)); err == nil {
		t.Fatal("the dead one's result was taken")
	}
	if r, err := b.Trainer.Records.Result(t.Context(), "alpha-1"); err != nil || r.Attempt != 2 || b.queued(t) != 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
}

func TestAZombiesResultIsRefusedWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	zombie := b.Take(t)
	s := b.state(t, "alpha-1")
	s.Attempt, s.Worker, s.Instance = 2, "w9", "i9" // another worker took over
	data, err := schema.Encode(&s)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	if err := zombie.Done(t.Context(), outcome(zombie)); !errors.Is(err, queue.ErrFenced) {
		t.Fatalf("got %v", err)
	}
	if _, err := b.Trainer.Records.Result(t.Context(), "alpha-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("the zombie's result was kept: %v", err)
	}
	if !errors.Is(context.Cause(zombie.Context()), queue.ErrFenced) && zombie.Context().Err() == nil {
		t.Fatal("the zombie does not know")
	}
}

func TestADuplicateOfARunningRolloutIsDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	other := b.NewWorker(t, "w2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go other.Take(ctx) //nolint:errcheck // there is no request for it
	b.again(t, "alpha-1")
	harness.Eventually(t, "one message", 5*time.Minute, func() bool { return b.queued(t) == 1 })
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	b.again(t, "alpha-1") // the request of a finished rollout
	harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.queued(t) == 0 })
	if s := b.state(t, "alpha-1"); s.Attempt != 1 {
		t.Fatalf("a duplicate ran: %+v", s)
	}
}

func TestARestartedWorkerFreesItsJobs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-1"))
	takeFrom(t, dying)
	harness.Eventually(t, "the presence that lists it", 5*time.Minute, func() bool {
		all, err := b.Broker.Records.Workers(t.Context())
		harness.Must(t, err)
		for _, p := range all {
			if p.Worker == "w2" && len(p.Running) == 1 {
				return true
			}
		}
		return false
	})
	crash()
	start := time.Now()
	b.NewWorker(t, "w2", func(c *queue.WorkerConfig) { c.Instance = "i2" })
	j := b.Take(t)
	if took := time.Since(start); j.Attempt != 2 || took > testenv.Quick().AckWait/2 {
		t.Fatalf("attempt %d after %s", j.Attempt, took)
	}
}

func TestALostAnswerToAClaimSpendsNoTry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 4, Tries: 1, Worker: "w1", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	if s := b.state(t, "alpha-1"); j.Attempt != 5 || s.Tries != 1 {
		t.Fatalf("got %+v", s)
	}
}

func TestTriesUsedUpByDeadWorkers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spent := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 3, Tries: 3, Worker: "gone", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&spent)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	b.Submit(t, harness.Request("alpha-1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.Worker.Take(ctx) //nolint:errcheck // it settles the request
	var r schema.Result
	harness.Eventually(t, "a dead result", 5*time.Minute, func() bool { r, err = b.Trainer.Records.Result(t.Context(), "alpha-1"); return err == nil })
	if r.Status != schema.StatusDead || r.Attempt != 3 || r.Fault == nil || r.Reward != nil {
		t.Fatalf("got %+v", r)
	}
}

func TestAQueueThatWasLostIsMadeAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	dying, crash := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-1"))
	takeFrom(t, dying)
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	harness.Must(t, s.Purge(t.Context()))
	crash()
	if j := takeFrom(t, b.Worker); j.Attempt != 2 {
		t.Fatalf("attempt %d", j.Attempt)
	}
}

func TestAStateWithoutAJobIsGivenBackByTheAudit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	_, err := b.JetStream(t).Publish(t.Context(), subjects.RequestCopy("alpha-1"), nil)
	harness.Must(t, err)
	lost := schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1, Tries: 1, Worker: "w1", Instance: "i1", OwnerSeq: 1}
	data, err := schema.Encode(&lost)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), data)
	harness.Must(t, err)
	harness.Eventually(t, "the state to be given back", 5*time.Minute, func() bool { return b.state(t, "alpha-1").Status == schema.StatusQueued })
	if s := b.state(t, "alpha-1"); s.Tries != 0 || s.Attempt != 1 {
		t.Fatalf("got %+v", s)
	}
}

func TestFinishedRolloutsArePurged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave() // the other one is the janitor
	other := b.NewWorker(t, "w2", func(c *queue.WorkerConfig) { c.Retention = 400 * time.Millisecond })
	b.Submit(t, harness.Request("alpha-1"))
	j := takeFrom(t, other)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	b.Submit(t, harness.Request("alpha-2"))
	running := takeFrom(t, other)
	harness.Eventually(t, "the purge", 5*time.Minute, func() bool {
		_, err := b.Trainer.Records.State(t.Context(), "alpha-1")
		return errors.Is(err, broker.ErrNotFound)
	})
	if s := b.state(t, "alpha-2"); s.Attempt != running.Attempt {
		t.Fatalf("got %+v", s)
	}
}

func TestAJobThatIsCutOffIsHeldAndGoesOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	held, changed := j.Suspended()
	if held {
		t.Fatal("held from the start")
	}
	b.Server.Shutdown()
	<-changed
	if held, changed = j.Suspended(); !held {
		t.Fatal("not held without a lease")
	}
	b.Restart(t)
	<-changed
	if j.Context().Err() != nil {
		t.Fatal("a rollout that was still its worker's was ended")
	}
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	harness.Eventually(t, "the result of attempt 1", 5*time.Minute, func() bool {
		r, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
		return err == nil && r.Attempt == 1
	})
}

// A result that cannot be committed for now keeps no other job from being held.
func TestACommitInAnOutageDelaysNoOtherJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	b.Submit(t, harness.Request("alpha-2"))
	one, two := b.Take(t), b.Take(t)
	_, changed := two.Suspended()
	b.Server.Shutdown()
	committed := make(chan error, 1)
	go func() { committed <- one.Done(context.Background(), outcome(one)) }()
	select {
	case <-changed:
	case <-time.After(15 * time.Second):
		t.Error("a job is not held while another's result is on its way")
	}
	b.Restart(t)
	harness.Must(t, <-committed)
	harness.Must(t, two.Done(t.Context(), outcome(two)))
}

// TestAResultWithoutItsState stores a result without its terminal state, as a
// worker does that dies between the two writes. The next worker must end the
// rollout with that result.
func TestAResultWithoutItsState(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for name, come := range map[string]func(*testing.T, *bench){
		"take-over": func(t *testing.T, b *bench) {
			ctx, cancel := context.WithCancel(t.Context())
			taken := make(chan *queue.Job, 1)
			go func() {
				j, _ := b.Worker.Take(ctx)
				taken <- j
			}()
			harness.Eventually(t, "the end", 5*time.Minute, func() bool { return b.state(t, "alpha-1").Status.Terminal() })
			cancel()
			if j := <-taken; j != nil {
				t.Errorf("attempt %d began", j.Attempt)
			}
		},
		"cancel": func(t *testing.T, b *bench) {
			harness.Eventually(t, "the end", 5*time.Minute, func() bool {
				harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-1"}, nil, "enough"))
				return b.state(t, "alpha-1").Status.Terminal()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			dying, crash := b.crashing(t, "w2")
			b.Submit(t, harness.Request("alpha-1"))
			r := outcome(takeFrom(t, dying))
			crash()
			r.V = schema.Version
			data, err := schema.Encode(&r)
			harness.Must(t, err)
			_, err = b.JetStream(t).Publish(t.Context(), subjects.Result("alpha-1"), data)
			harness.Must(t, err)
			come(t, b)
			if s := b.state(t, "alpha-1"); s.Status != schema.StatusDone || s.Attempt != 1 {
				t.Errorf("got %+v", s)
			}
			got, err := b.Trainer.Records.Result(t.Context(), "alpha-1")
			harness.Must(t, err)
			if got.Status != schema.StatusDone || got.Attempt != 1 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestALateResultIsRefused checks that a result is refused even if only the claim
// of the next attempt was written since.
func TestALateResultIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	zombie, cut := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-1"))
	late := takeFrom(t, zombie)
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), subjects.State("alpha-1"))
	harness.Must(t, err)
	cut()
	second := b.Take(t)
	data, err := schema.Encode(&schema.Result{V: schema.Version, ID: "alpha-1", Attempt: late.Attempt, Status: schema.StatusFailed})
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.Result("alpha-1"), data, jetstream.WithExpectLastSequenceForSubject(m.Sequence, subjects.State("alpha-1")))
	if err == nil {
		t.Fatal("a late result was stored")
	}
	harness.Must(t, second.Done(t.Context(), outcome(second)))
}

// TestAWorkerStartsBesideARecordThatCannotBeRead has a former instance with a rollout without a
// valid state record.
func TestAWorkerStartsBesideARecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	_, err := b.JetStream(t).Publish(t.Context(), subjects.State("alpha-1"), []byte("garbage"))
	harness.Must(t, err)
	former := schema.Presence{V: schema.Version, Worker: "w2", Instance: "i0", Slots: 1, Running: []schema.ID{"alpha-1"}, Offer: schema.Offer{Backends: []string{"dummy"}, Agents: []string{}}}
	data, err := schema.Encode(&former)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.Presence("w2", "i0"), data)
	harness.Must(t, err)
	workers, err := b.JetStream(t).Stream(t.Context(), subjects.StreamWorkers)
	harness.Must(t, err)
	config := workers.CachedInfo().Config
	config.MaxAge = 0 // the former instance's presence does not expire
	_, err = b.JetStream(t).UpdateStream(t.Context(), config)
	harness.Must(t, err)
	b.Submit(t, harness.Request("alpha-2"))
	w := b.NewWorker(t, "w2")
	if j := takeFrom(t, w); j.Request.ID != "alpha-2" {
		t.Fatalf("got %s", j.Request.ID)
	}
}
