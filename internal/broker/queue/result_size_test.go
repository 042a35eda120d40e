package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// offers makes a worker offer a backend, and GPUs if it is "gpu".
func offers(backend string, slots int) func(*queue.WorkerConfig) {
	return func(c *queue.WorkerConfig) {
		c.Slots = slots
		c.Offer = func() schema.Offer { return schema.Offer{Backends: []string{backend}, Agents: []string{"mini"}} }
	}
}

// keepTaking runs the jobs of a worker until the test ends.
func keepTaking(t *testing.T, w *queue.Worker) <-chan *queue.Job {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	jobs, ended := make(chan *queue.Job, 100), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			j, err := w.Take(ctx)
			if err != nil {
				return
			}
			jobs <- j
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return jobs
}

func TestARequestGoesToTheWorkerThatCanRunIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	for _, wid := range []string{"a", "b", "c"} {
		unfit := keepTaking(t, b.NewWorker(t, wid, offers("dummy", 2)))
		t.Cleanup(func() {
			select {
			case j := <-unfit:
				t.Errorf("%s went to a worker that cannot run it", j.Request.ID)
			default:
			}
		})
	}
	able := b.NewWorker(t, "d", offers("special", 1))
	harness.Eventually(t, "the one that can", 5*time.Minute, func() bool {
		all, err := b.Broker.Records.Workers(t.Context())
		return err == nil && len(all) == 4
	})
	first, second := harness.Request("alpha-1"), harness.Request("alpha-2")
	first.Sandbox.Backend, second.Sandbox.Backend = "special", "special"
	b.Submit(t, first)
	b.Submit(t, second)
	one := takeFrom(t, able)
	harness.Must(t, one.Done(t.Context(), outcome(one)))
	two := takeFrom(t, able)
	harness.Must(t, two.Done(t.Context(), outcome(two)))
	if one.Attempt != 1 || two.Attempt != 1 {
		t.Fatalf("attempts %d and %d", one.Attempt, two.Attempt)
	}
}

func TestNoWorkerOffersTheNeeds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2), func(c *queue.WorkerConfig) { c.Timing.NoCapable = 600 * time.Millisecond }))
	r := harness.Request("alpha-1")
	r.Sandbox.Backend = "moon"
	start := time.Now()
	b.Submit(t, r)
	var res schema.Result
	var err error
	harness.Eventually(t, "a result", 5*time.Minute, func() bool { res, err = b.Trainer.Records.Result(t.Context(), "alpha-1"); return err == nil })
	if res.Status != schema.StatusFailed || res.Fault.Code != schema.CodeNoWorker || !strings.Contains(res.Fault.Message, "sandbox.backend") || time.Since(start) < 600*time.Millisecond {
		t.Fatalf("got %+v after %s", res.Fault, time.Since(start))
	}
	if q, err := b.Trainer.Records.Request(t.Context(), "alpha-1"); err != nil || q.Sandbox.Backend != "moon" {
		t.Errorf("the kept request: %+v, %v", q, err)
	}
}

// A request that no worker could run at first, and that has run since, gets the
// full wait for a capable worker again.
func TestARequestThatNoWorkerCouldRunIsNotGivenUpLater(t *testing.T) {
	t.Parallel()
	const noCapable = 1500 * time.Millisecond
	patient := func(c *queue.WorkerConfig) { c.Timing.NoCapable = noCapable }
	b := newBench(t)
	b.Leave()
	unable := b.NewWorker(t, "a", offers("dummy", 2), patient)
	r := harness.Request("alpha-1")
	r.Sandbox.Backend = "special"
	b.Submit(t, r)
	once, enough := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = unable.Take(once)
	}()
	harness.Eventually(t, "the look of a worker that cannot", 5*time.Minute, func() bool { return b.parked(t, 2) == 1 })
	enough()
	<-ended
	able, leave := b.StartWorker(t, "d", offers("special", 1), patient)
	j := takeFrom(t, able)
	<-time.After(2 * noCapable) // it runs for longer than a request waits for a capable worker
	harness.Must(t, j.Return(t.Context(), nil, true, 0))
	leave()
	keepTaking(t, unable)
	<-time.After(noCapable / 2)
	j = takeFrom(t, b.NewWorker(t, "e", offers("special", 1), patient))
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	if res, err := b.Trainer.Records.Result(t.Context(), "alpha-1"); err != nil || res.Status != schema.StatusDone || j.Attempt != 2 {
		t.Fatalf("got %+v, %v", res, err)
	}
}

func TestCancelInEveryState(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	cancelled := func(id schema.ID, attempt int) {
		t.Helper()
		harness.Must(t, b.Trainer.Cancel([]schema.ID{id}, nil, "stale"))
		harness.Eventually(t, "the end of "+string(id), 5*time.Minute, func() bool {
			r, err := b.Trainer.Records.Result(t.Context(), id)
			return err == nil && r.Status == schema.StatusCancelled && r.Attempt == attempt && r.Reward == nil && r.Fault.Message == "cancelled by its trainer: stale"
		})
	}
	cancelled("alpha-absent", 0)
	b.Submit(t, harness.Request("alpha-absent")) // it comes too late
	b.Submit(t, harness.Request("alpha-returned"))
	j := b.Take(t) // the late one is settled on the way
	harness.Must(t, j.Return(t.Context(), nil, true, time.Minute))
	cancelled("alpha-returned", 1)

	dying, crash := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-orphan"))
	takeFrom(t, dying)
	crash()
	asked := time.Time{}
	harness.Eventually(t, "the end of an orphan", 5*time.Minute, func() bool {
		if time.Since(asked) > time.Second { // repeat as a trainer does: the dead worker may have got the cancel
			harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-orphan"}, nil, "stale"))
			asked = time.Now()
		}
		r, err := b.Trainer.Records.Result(t.Context(), "alpha-orphan")
		return err == nil && r.Status == schema.StatusCancelled && r.Fault.Message == "cancelled by its trainer: stale"
	})

	b.Submit(t, harness.Request("alpha-running"))
	j = b.Take(t)
	harness.Must(t, b.Trainer.Cancel([]schema.ID{"alpha-running"}, nil, "stale"))
	<-j.Context().Done()
	harness.Must(t, j.Done(t.Context(), queue.Cancelled(outcome(j))))
	cancelled("alpha-running", 1)

	b.Submit(t, harness.Request("alpha-faster")) // the result is ready before the worker hears of the cancel
	j = b.Take(t)
	s := b.state(t, "alpha-faster")
	s.Status = schema.StatusCancelling
	data, err := schema.Encode(&s)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.State("alpha-faster"), data)
	harness.Must(t, err)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	if r, err := b.Trainer.Records.Result(t.Context(), "alpha-faster"); err != nil || r.Status != schema.StatusCancelled || r.Attempt != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	harness.Must(t, b.Trainer.Cancel([]schema.ID{"beta-1"}, nil, "not mine"))
	if _, err := b.Trainer.Records.Result(t.Context(), "beta-1"); err == nil {
		t.Fatal("a trainer cancelled another's rollout")
	}
}

func TestDeadLettersAreListedRequeuedAndDropped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := harness.Request("alpha-1")
	whole, err := schema.Encode(&r)
	harness.Must(t, err)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.test")
	for _, body := range [][]byte{whole[:len(whole)-3], []byte("junk")} {
		harness.Must(t, nc.Publish(subjects.Request(1, "alpha"), body))
	}
	keepTaking(t, b.Worker)
	var res schema.Result
	harness.Eventually(t, "a result of the one whose id can be read", 5*time.Minute, func() bool { res, err = b.Trainer.Records.Result(t.Context(), "alpha-1"); return err == nil })
	if res.Status != schema.StatusFailed || res.Fault.Code != schema.CodeUnreadable {
		t.Fatalf("got %+v", res.Fault)
	}
	harness.Eventually(t, "two dead letters and an empty queue", 5*time.Minute, func() bool {
		all, err := b.Broker.Dead.List(t.Context(), 10)
		harness.Must(t, err)
		return len(all) == 2 && b.queued(t) == 0
	})
	all, err := b.Broker.Dead.List(t.Context(), 10)
	harness.Must(t, err)
	one, err := b.Broker.Dead.Get(t.Context(), all[1].Seq)
	harness.Must(t, err)
	if string(one.Data) != "junk" || one.Reason != "unreadable" || one.Subject != subjects.Request(1, "alpha") || one.Why == "" {
		t.Fatalf("got %+v", one)
	}
	harness.Must(t, b.Broker.Dead.Drop(t.Context(), all[0].Seq))
	harness.Must(t, b.Broker.Dead.Requeue(t.Context(), all[1].Seq)) // it comes back
	harness.Eventually(t, "the letter that came back", 5*time.Minute, func() bool {
		all, err := b.Broker.Dead.List(t.Context(), 10)
		harness.Must(t, err)
		return len(all) == 1 && all[0].Seq > one.Seq
	})
}

// TestAFloodOfDeadMessagesKeepsThoseOfOthers: the dead messages of one trainer are
// bounded, and push out none of another's.
func TestAFloodOfDeadMessagesKeepsThoseOfOthers(t *testing.T) {
	t.Parallel()
	const bound = 500
	b := newBench(t)
	b.NewTrainer(t, "beta")
	nc := testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.test")
	dead := func() map[string]int {
		all, err := b.Broker.Dead.List(t.Context(), 10*bound)
		harness.Must(t, err)
		count := map[string]int{}
		for _, d := range all {
			count[d.Subject]++
		}
		return count
	}
	of := func(trainer string) string { return subjects.Request(1, trainer) }
	keepTaking(t, b.Worker)
	harness.Eventually(t, "a dead message of beta", 5*time.Minute, func() bool {
		if dead()[of("beta")] > 0 {
			return true
		}
		harness.Must(t, nc.Publish(of("beta"), []byte("beta's"))) // its stream may be made only now
		return false
	})
	for n := range bound + 200 {
		harness.Must(t, nc.Publish(of("alpha"), fmt.Appendf(nil, "junk %d", n)))
	}
	harness.Must(t, nc.Flush())
	harness.Eventually(t, "the flood's end", 5*time.Minute, func() bool { return dead()[of("alpha")] >= bound && b.queued(t) == 0 })
	if count := dead(); count[of("beta")] == 0 || count[of("alpha")] != bound {
		t.Errorf("got %v", count)
	}
}
