package broker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// offers makes a worker offer a backend, and GPUs if it is "gpu".
func offers(backend string, slots int) func(*broker.WorkerConfig) {
	return func(c *broker.WorkerConfig) {
		c.Slots = slots
		c.Offer = func() schema.Offer { return schema.Offer{Backends: []string{backend}, Agents: []string{"mini"}} }
	}
}

// keepTaking runs what a worker gets until the test ends.
func keepTaking(t *testing.T, w *broker.WorkerSide) <-chan *broker.Job {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	jobs, ended := make(chan *broker.Job, 100), make(chan struct{})
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
	b := newBench(t)
	b.leave()
	for _, wid := range []string{"a", "b", "c"} {
		unfit := keepTaking(t, b.workerSide(t, wid, offers("dummy", 2)))
		t.Cleanup(func() {
			select {
			case j := <-unfit:
				t.Errorf("%s went to a worker that cannot run it", j.Request.ID)
			default:
			}
		})
	}
	able := b.workerSide(t, "d", offers("special", 1))
	eventually(t, "the one that can", func() bool {
		all, err := able.Workers(t.Context())
		return err == nil && len(all) == 4
	})
	first, second := request("alpha-1"), request("alpha-2")
	first.Sandbox.Backend, second.Sandbox.Backend = "special", "special"
	b.submit(t, first)
	b.submit(t, second)
	// It takes nothing itself for now: both come by hand, one after the other.
	start := time.Now()
	one := takeFrom(t, able)
	must(t, one.Done(t.Context(), outcome(one)))
	two := takeFrom(t, able)
	must(t, two.Done(t.Context(), outcome(two)))
	if took := time.Since(start); one.Attempt != 1 || two.Attempt != 1 || took > 5*time.Second {
		t.Fatalf("attempts %d and %d after %s", one.Attempt, two.Attempt, took)
	}
}

func TestNobodyOffersWhatIsAsked(t *testing.T) {
	b := newBench(t)
	b.leave()
	keepTaking(t, b.workerSide(t, "a", offers("dummy", 2), func(c *broker.WorkerConfig) { c.Timing.NoCapable = 600 * time.Millisecond }))
	r := request("alpha-1")
	r.Sandbox.Backend = "moon"
	start := time.Now()
	b.submit(t, r)
	var res schema.Result
	var err error
	eventually(t, "a result", func() bool { res, err = b.trainer.Result(t.Context(), "alpha-1"); return err == nil })
	if res.Status != schema.StatusFailed || res.Fault.Code != schema.CodeNoWorker || !strings.Contains(res.Fault.Message, "sandbox.backend") || time.Since(start) < 600*time.Millisecond {
		t.Fatalf("got %+v after %s", res.Fault, time.Since(start))
	}
}

// A request that nobody could run once, and that has run meanwhile, waits again
// for somebody who can run it.
func TestWhatNobodyCouldRunOnceIsNotGivenUpLater(t *testing.T) {
	const noCapable = 1500 * time.Millisecond
	patient := func(c *broker.WorkerConfig) { c.Timing.NoCapable = noCapable }
	b := newBench(t)
	b.leave()
	unable := b.workerSide(t, "a", offers("dummy", 2), patient)
	r := request("alpha-1")
	r.Sandbox.Backend = "special"
	b.submit(t, r)
	once, enough := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = unable.Take(once)
	}()
	queue, err := b.js(t).Stream(t.Context(), subjects.StreamRequests)
	must(t, err)
	eventually(t, "the look of a worker that cannot", func() bool {
		delivered := uint64(0)
		for c := range queue.ListConsumers(t.Context()).Info() {
			delivered += c.Delivered.Consumer
		}
		return delivered > 1 // the first look is over
	})
	enough()
	<-ended
	able, leave := b.stoppable(t, "d", offers("special", 1), patient)
	j := takeFrom(t, able)
	<-time.After(2 * noCapable) // it runs for longer than anybody would wait
	must(t, j.Return(t.Context(), nil, true, time.Second))
	leave()
	keepTaking(t, unable)
	<-time.After(time.Second + noCapable/2) // by now it has it again
	j = takeFrom(t, b.workerSide(t, "e", offers("special", 1), patient))
	must(t, j.Done(t.Context(), outcome(j)))
	if res, err := b.trainer.Result(t.Context(), "alpha-1"); err != nil || res.Status != schema.StatusDone || j.Attempt != 2 {
		t.Fatalf("got %+v, %v", res, err)
	}
}

func TestCancelInEveryState(t *testing.T) {
	b := newBench(t)
	cancelled := func(id schema.ID, attempt int) {
		t.Helper()
		must(t, b.trainer.Cancel([]schema.ID{id}, "stale"))
		eventually(t, "the end of "+string(id), func() bool {
			r, err := b.trainer.Result(t.Context(), id)
			return err == nil && r.Status == schema.StatusCancelled && r.Attempt == attempt && r.Reward == nil
		})
	}
	cancelled("alpha-absent", 0)
	b.submit(t, request("alpha-absent")) // it comes too late
	b.submit(t, request("alpha-returned"))
	j := b.take(t) // the late one is settled on the way
	must(t, j.Return(t.Context(), nil, true, time.Minute))
	cancelled("alpha-returned", 1)

	dying, crash := b.crashing(t, "w2")
	b.submit(t, request("alpha-orphan"))
	takeFrom(t, dying)
	crash()
	asked := time.Time{}
	eventuallyWithin(t, 15*time.Second, "the end of an orphan", func() bool {
		if time.Since(asked) > time.Second { // as a trainer does: the dead one may have been asked
			must(t, b.trainer.Cancel([]schema.ID{"alpha-orphan"}, "stale"))
			asked = time.Now()
		}
		r, err := b.trainer.Result(t.Context(), "alpha-orphan")
		return err == nil && r.Status == schema.StatusCancelled
	})

	b.submit(t, request("alpha-faster")) // the result is ready before the worker hears of the cancel
	j = b.take(t)
	s := b.state(t, "alpha-faster")
	s.Status = schema.StatusCancelling
	data, err := schema.Encode(&s)
	must(t, err)
	_, err = b.js(t).Publish(t.Context(), subjects.State("alpha-faster"), data)
	must(t, err)
	must(t, j.Done(t.Context(), outcome(j)))
	if r, err := b.trainer.Result(t.Context(), "alpha-faster"); err != nil || r.Status != schema.StatusCancelled || r.Attempt != 1 {
		t.Fatalf("got %+v, %v", r, err)
	}
	must(t, b.trainer.Cancel([]schema.ID{"beta-1"}, "not mine"))
	if _, err := b.trainer.Result(t.Context(), "beta-1"); err == nil {
		t.Fatal("a trainer cancelled another's rollout")
	}
}

func TestDeadLettersAreListedRequeuedAndDropped(t *testing.T) {
	b := newBench(t)
	r := request("alpha-1")
	whole, err := schema.Encode(&r)
	must(t, err)
	nc := b.raw(t, b.server.WorkerCreds(), "_INBOX.test")
	for _, body := range [][]byte{whole[:len(whole)-3], []byte("junk")} {
		must(t, nc.Publish(subjects.Request(1, "alpha"), body))
	}
	keepTaking(t, b.worker)
	var res schema.Result
	eventually(t, "a result of the one whose id can be read", func() bool { res, err = b.trainer.Result(t.Context(), "alpha-1"); return err == nil })
	if res.Status != schema.StatusFailed || res.Fault.Code != schema.CodeUnreadable {
		t.Fatalf("got %+v", res.Fault)
	}
	eventually(t, "two dead letters and an empty queue", func() bool {
		all, err := b.worker.DeadLetters(t.Context(), 10)
		must(t, err)
		return len(all) == 2 && b.queued(t) == 0
	})
	all, err := b.worker.DeadLetters(t.Context(), 10)
	must(t, err)
	one, err := b.worker.DeadLetter(t.Context(), all[1].Seq)
	must(t, err)
	if string(one.Data) != "junk" || one.Reason != "unreadable" || one.Subject != subjects.Request(1, "alpha") || one.Why == "" {
		t.Fatalf("got %+v", one)
	}
	must(t, b.worker.Drop(t.Context(), all[0].Seq))
	must(t, b.worker.Requeue(t.Context(), all[1].Seq)) // it comes back
	eventually(t, "the letter that came back", func() bool {
		all, err := b.worker.DeadLetters(t.Context(), 10)
		must(t, err)
		return len(all) == 1 && all[0].Seq > one.Seq
	})
}
