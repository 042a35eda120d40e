package queue_test

import (
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

// fill brings the records of trainer alpha above their bound.
func (b *bench) fill(t testing.TB) {
	t.Helper()
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxRecordBytes: 1}))
}

// next waits for the next job.
func next(t testing.TB, jobs <-chan *queue.Job) *queue.Job {
	t.Helper()
	select {
	case j := <-jobs:
		return j
	case <-time.After(time.Minute):
		t.Fatal("no job came")
		return nil
	}
}

// TestARunningRolloutEndsAlthoughItsTrainerIsFull lets rollouts of a trainer go back to
// its queue while its records are above their bound. They must run again, and a
// request that has not begun must wait.
func TestARunningRolloutEndsAlthoughItsTrainerIsFull(t *testing.T) {
	testenv.Slow(t)
	plain := func(id schema.ID) schema.Request { return harness.Request(id) }
	crashed := func(t *testing.T, b *bench, _ *queue.Job, crash func()) {
		t.Helper()
		b.fill(t)
		crash()
	}
	for name, tt := range map[string]struct {
		request func(schema.ID) schema.Request
		back    func(t *testing.T, b *bench, j *queue.Job, crash func())
	}{
		"its worker crashed": {plain, crashed},
		"its worker was drained": {plain, func(t *testing.T, b *bench, j *queue.Job, _ func()) {
			t.Helper()
			b.fill(t)
			harness.Must(t, j.Return(t.Context(), nil, true, 0))
		}},
		"its try failed": {plain, func(t *testing.T, b *bench, j *queue.Job, _ func()) {
			t.Helper()
			b.fill(t)
			harness.Must(t, j.Return(t.Context(), schema.Faultf("worker", schema.CodeInternal, schema.WhoWorker, "broken"), false, time.Second))
		}},
		"it needs something": {special, crashed},
		"it had a delay": {func(id schema.ID) schema.Request {
			r := special(id)
			r.DelayMS = 100
			return r
		}, crashed},
		"the queue is lost": {plain, func(t *testing.T, b *bench, _ *queue.Job, crash func()) {
			t.Helper()
			b.fill(t)
			s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
			harness.Must(t, err)
			harness.Must(t, s.Purge(t.Context()))
			crash()
		}},
		"its copy is lost": {plain, func(t *testing.T, b *bench, _ *queue.Job, crash func()) {
			t.Helper()
			b.fill(t)
			crash() // otherwise the worker would store it again
			s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
			harness.Must(t, err)
			harness.Must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.RequestCopy("alpha-1"))))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			beta := b.NewTrainer(t, "beta")
			dying, crash := b.crashing(t, "w2")
			b.Submit(t, tt.request("alpha-1"))
			tt.back(t, b, takeFrom(t, dying), crash)
			b.Leave()
			_, err := b.Trainer.Submit(t.Context(), 0, []schema.Request{harness.Request("alpha-2")})
			harness.Must(t, err)
			unfit := keepTaking(t, b.NewWorker(t, "w3", offers("other", 1)))
			able := b.NewWorker(t, "w4", func(c *queue.WorkerConfig) {
				c.Offer = func() schema.Offer {
					return schema.Offer{Backends: []string{"dummy", "special"}, Agents: []string{"mini"}}
				}
			})
			jobs := keepTaking(t, able)
			j := next(t, jobs)
			if j.Request.ID != "alpha-1" || j.Attempt != 2 {
				t.Fatalf("got %s, attempt %d", j.Request.ID, j.Attempt)
			}
			harness.Must(t, j.Done(t.Context(), outcome(j)))
			if r, err := b.Trainer.Records.Result(t.Context(), "alpha-1"); err != nil || r.Attempt != 2 || r.Status != schema.StatusDone {
				t.Fatalf("got %+v, %v", r, err)
			}
			_, err = beta.Submit(t.Context(), 3, []schema.Request{special("beta-1")})
			harness.Must(t, err)
			if j = next(t, jobs); j.Request.ID != "beta-1" {
				t.Fatalf("got %s", j.Request.ID)
			}
			harness.Must(t, j.Done(t.Context(), outcome(j)))
			harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxRecordBytes: broker.AnyRecordBytes}))
			if j = next(t, jobs); j.Request.ID != "alpha-2" {
				t.Fatalf("got %s", j.Request.ID)
			}
			harness.Must(t, j.Done(t.Context(), outcome(j)))
			plain, err := b.JetStream(t).Stream(t.Context(), subjects.StreamPlain)
			harness.Must(t, err)
			harness.Eventually(t, "empty queues", 5*time.Minute, func() bool {
				info, err := plain.Info(t.Context())
				return err == nil && info.State.Msgs == 0 && b.left(t) == 0
			})
			select {
			case j := <-unfit:
				t.Fatalf("%s went to a worker that cannot run it", j.Request.ID)
			default:
			}
		})
	}
}

// begun stores the records of a rollout of a dead worker.
func (b *bench) begun(t testing.TB, r schema.Request) {
	t.Helper()
	r.V = schema.Version
	copied, err := schema.Encode(&r)
	harness.Must(t, err)
	state, err := schema.Encode(&schema.State{V: schema.Version, ID: r.ID, Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1, Tries: 1, Worker: "gone", Instance: "i1", OwnerSeq: 1})
	harness.Must(t, err)
	js := b.JetStream(t)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: subjects.RequestCopy(r.ID), Data: copied, Header: nats.Header{subjects.HeaderSubject: {subjects.Request(2, "alpha")}}})
	harness.Must(t, err)
	_, err = js.Publish(t.Context(), subjects.State(r.ID), state)
	harness.Must(t, err)
}

// TestARolloutThatHasBegunIsNotDelayedAgain: the janitor publishes its request anew.
func TestARolloutThatHasBegunIsNotDelayedAgain(t *testing.T) {
	testenv.Slow(t)
	for name, prepare := range map[string]func(*testing.T, *bench){
		"the queue is lost":   func(*testing.T, *bench) {},
		"its trainer is full": func(t *testing.T, b *bench) { t.Helper(); b.fill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			late := harness.Request("alpha-1")
			late.DelayMS = time.Hour.Milliseconds()
			prepare(t, b)
			b.begun(t, late)
			if j := next(t, keepTaking(t, b.Worker)); j.Request.ID != "alpha-1" || j.Attempt != 2 {
				t.Fatalf("got %s, attempt %d", j.Request.ID, j.Attempt)
			}
		})
	}
}

// TestARequestThatIsLostAgainIsMadeAgain: the server drops a message with the id of
// one that it got in the last two minutes.
func TestARequestThatIsLostAgainIsMadeAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	b.begun(t, harness.Request("alpha-1"))
	for n := range uint64(3) {
		harness.Eventually(t, "the request in the queue", 5*time.Minute, func() bool {
			info, err := s.Info(t.Context())
			return err == nil && info.State.LastSeq == n+1 && info.State.Msgs == 1
		})
		if n < 2 {
			harness.Must(t, s.Purge(t.Context()))
		}
	}
	if j := b.Take(t); j.Request.ID != "alpha-1" || j.Attempt != 2 {
		t.Fatalf("got %s, attempt %d", j.Request.ID, j.Attempt)
	}
}
