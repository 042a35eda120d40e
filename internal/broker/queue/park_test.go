package queue_test

import (
	"context"
	"fmt"
	"strings"
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

// consumers lists the consumers of alpha's queue by name.
func (b *bench) consumers(t testing.TB) map[string]*jetstream.ConsumerInfo {
	t.Helper()
	if b.admin == nil {
		b.admin = b.JetStream(t)
	}
	s, err := b.admin.Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	out := map[string]*jetstream.ConsumerInfo{}
	for c := range s.ListConsumers(t.Context()).Info() {
		out[c.Name] = c
	}
	return out
}

// parked counts the parked requests of a lane of alpha's queue.
func (b *bench) parked(t testing.TB, lane int) (n int) {
	t.Helper()
	for name, c := range b.consumers(t) {
		if strings.HasPrefix(name, subjects.ConsumerOfClass(lane, "")) {
			n += int(c.NumPending) + c.NumAckPending
		}
	}
	return n
}

// left counts the messages of alpha's queue.
func (b *bench) left(t testing.TB) (n int) {
	t.Helper()
	for _, c := range b.consumers(t) {
		n += int(c.NumPending) + c.NumAckPending
	}
	return n
}

// deliveries counts the deliveries of alpha's queue.
func (b *bench) deliveries(t testing.TB) (n uint64) {
	t.Helper()
	for _, c := range b.consumers(t) {
		n += c.Delivered.Consumer
	}
	return n
}

// narrow lets a lane of alpha's queue have few unacknowledged messages.
func (b *bench) narrow(t testing.TB, lane, most int) {
	t.Helper()
	js := b.JetStream(t)
	c, err := js.Consumer(t.Context(), subjects.Queue("alpha"), subjects.ConsumerOf(lane))
	harness.Must(t, err)
	config := c.CachedInfo().Config
	config.MaxAckPending = most
	_, err = js.UpdateConsumer(t.Context(), subjects.Queue("alpha"), config)
	harness.Must(t, err)
}

// special is a request for workers with the backend "special".
func special(id schema.ID) schema.Request {
	r := harness.Request(id)
	r.Sandbox.Backend = "special"
	return r
}

func (b *bench) submitAll(t testing.TB, lane, n int, of func(i int) schema.Request) {
	t.Helper()
	var group []schema.Request
	for i := range n {
		group = append(group, of(i))
		if len(group) == broker.MaxBatch || i == n-1 {
			_, err := b.Trainer.Submit(t.Context(), lane, group)
			harness.Must(t, err)
			group = nil
		}
	}
}

func numbered(name string, i int) schema.ID { return schema.ID(fmt.Sprintf("alpha-%s-%d", name, i)) }

func TestDelayedRequestsDelayNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.narrow(t, 2, 100)
	b.submitAll(t, 2, 1000, func(i int) schema.Request {
		r := harness.Request(numbered("late", i))
		r.DelayMS = time.Hour.Milliseconds()
		return r
	})
	b.submitAll(t, 2, 10, func(i int) schema.Request { return harness.Request(numbered("ready", i)) })
	jobs := keepTaking(t, b.Worker)
	for i := range 10 {
		select {
		case j := <-jobs:
			if j.Request.DelayMS != 0 || j.Attempt != 1 {
				t.Fatalf("got %s, attempt %d", j.Request.ID, j.Attempt)
			}
			harness.Must(t, j.Done(t.Context(), outcome(j)))
		case <-time.After(10 * time.Minute):
			t.Fatalf("%d of 10 requests were taken; %d are parked", i, b.parked(t, 2))
		}
	}
	harness.Eventually(t, "all delayed requests parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 1000 })
	if n := b.left(t); n != 1000 {
		t.Fatalf("the queue has %d messages", n)
	}
}

func TestUnfitRequestsDelayNoOtherAndAreDeliveredOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	b.narrow(t, 2, 20)
	jobs := keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2)))
	b.NewWorker(t, "d", offers("special", 1)) // it could, but all its slots are busy
	b.submitAll(t, 2, 50, func(i int) schema.Request { return special(numbered("special", i)) })
	b.submitAll(t, 2, 1, func(int) schema.Request { return harness.Request("alpha-ready") })
	select {
	case j := <-jobs:
		harness.Must(t, j.Done(t.Context(), outcome(j)))
	case <-time.After(2 * time.Minute):
		t.Fatal("a request that can run was not taken")
	}
	harness.Eventually(t, "all others parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 50 && b.left(t) == 50 })
	<-time.After(4 * testenv.Quick().Unfit)
	if n := b.deliveries(t); n != 51 {
		t.Fatalf("51 requests were delivered %d times", n)
	}
}

func TestParkedRequestsKeepTheOrderAndTheWeightsOfLanes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	for lane, n := range map[int]int{0: 60, 3: 4} {
		b.submitAll(t, lane, n, func(i int) schema.Request {
			r := special(numbered(fmt.Sprint("p", lane), i))
			r.Group, r.Index = fmt.Sprint(lane), i
			return r
		})
	}
	unable, leave := b.StartWorker(t, "a", offers("dummy", 1))
	ctx, enough := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = unable.Take(ctx)
	}()
	harness.Eventually(t, "all parked", 5*time.Minute, func() bool { return b.parked(t, 0) == 60 && b.parked(t, 3) == 4 })
	enough()
	<-ended
	leave()
	able := b.NewWorker(t, "d", offers("special", 1))
	next := map[string]int{}
	for range 40 {
		j := takeFrom(t, able)
		harness.Must(t, j.Done(t.Context(), outcome(j)))
		if j.Request.Index != next[j.Request.Group] {
			t.Fatalf("request %d of lane %s came as number %d", j.Request.Index, j.Request.Group, next[j.Request.Group])
		}
		next[j.Request.Group]++
	}
	if next["0"] < 34 || next["3"] < 1 {
		t.Fatalf("of 40 jobs %d were urgent and %d of the lowest lane", next["0"], next["3"])
	}
}

// A worker that dies between the copy and the ack leaves two messages. The
// request runs once and none is left.
func TestARequestThatIsParkedTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	r := special("alpha-1")
	first, err := schema.Encode(&r)
	harness.Must(t, err)
	b.Submit(t, r)
	unable, leave := b.StartWorker(t, "a", offers("dummy", 1))
	ctx, enough := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = unable.Take(ctx)
	}()
	harness.Eventually(t, "it is parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 1 && b.left(t) == 1 })
	again := func() { // as after the ack wait
		t.Helper()
		_, err = b.JetStream(t).PublishMsg(t.Context(), &nats.Msg{Subject: subjects.Request(2, "alpha"), Data: first})
		harness.Must(t, err)
	}
	again()
	harness.Eventually(t, "the original is dropped", 5*time.Minute, func() bool { return b.left(t) == 1 })
	again()
	enough()
	<-ended
	leave()
	able := b.NewWorker(t, "d", offers("special", 2))
	j := takeFrom(t, able)
	jobs := keepTaking(t, able)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.left(t) == 0 })
	select {
	case j := <-jobs:
		t.Fatalf("attempt %d runs", j.Attempt)
	default:
	}
	if s := b.state(t, "alpha-1"); s.Attempt != 1 || s.Status != schema.StatusDone {
		t.Fatalf("got %+v", s)
	}
}

func TestParkedRequestsAreCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2)))
	unfit, late := special("alpha-unfit"), harness.Request("alpha-late")
	late.DelayMS = time.Hour.Milliseconds()
	unfit.Group, late.Group = "g", "g"
	seqs, err := b.Trainer.Submit(t.Context(), 1, []schema.Request{unfit, late})
	harness.Must(t, err)
	harness.Eventually(t, "both parked", 5*time.Minute, func() bool { return b.parked(t, 1) == 2 && b.left(t) == 2 })
	for i, id := range []schema.ID{unfit.ID, late.ID} {
		there, err := b.Trainer.Queued(t.Context(), id, seqs[i])
		if err != nil || !there {
			t.Fatalf("%s: the trainer finds no message: %v", id, err)
		}
	}
	harness.Must(t, b.Trainer.Cancel([]schema.ID{unfit.ID, late.ID}, seqs, "stale"))
	for _, id := range []schema.ID{unfit.ID, late.ID} {
		harness.Eventually(t, "the end of "+string(id), 5*time.Minute, func() bool {
			r, err := b.Trainer.Records.Result(t.Context(), id)
			return err == nil && r.Status == schema.StatusCancelled && r.Group == "g"
		})
	}
	harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.left(t) == 0 })
}

func TestParkedRequestsRunAsSoonAsAWorkerCan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	keepTaking(t, b.NewWorker(t, "a", offers("dummy", 2)))
	late := special("alpha-late")
	late.DelayMS = 500
	b.Submit(t, special("alpha-1"))
	b.Submit(t, late)
	harness.Eventually(t, "both parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 2 })
	able := b.NewWorker(t, "d", offers("special", 1))
	seen := map[schema.ID]bool{}
	for range 2 {
		j := takeFrom(t, able)
		seen[j.Request.ID] = true
		harness.Must(t, j.Done(t.Context(), outcome(j)))
	}
	b.Submit(t, special("alpha-2")) // its class is known by now
	j := takeFrom(t, able)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	if !seen["alpha-1"] || !seen["alpha-late"] || j.Request.ID != "alpha-2" {
		t.Fatalf("ran %v and %s", seen, j.Request.ID)
	}
	harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.left(t) == 0 })
}

// The consumer of a class is lost while requests are parked there, as after a lost
// queue and a worker that dies before it makes the consumer again. Or its metadata
// cannot be read, so that no worker pulls from it.
func TestParkedRequestsWithoutAConsumerStillRun(t *testing.T) {
	testenv.Slow(t)
	for name, spoil := range map[string]func(ctx context.Context, js jetstream.JetStream, c *jetstream.ConsumerInfo) error{
		"it is lost": func(ctx context.Context, js jetstream.JetStream, c *jetstream.ConsumerInfo) error {
			return js.DeleteConsumer(ctx, c.Stream, c.Name)
		},
		"it cannot be read": func(ctx context.Context, js jetstream.JetStream, c *jetstream.ConsumerInfo) error {
			config := c.Config
			config.Metadata = map[string]string{"turngate.needs": "no JSON"}
			_, err := js.UpdateConsumer(ctx, c.Stream, config)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.Leave()
			unable, leave := b.StartWorker(t, "a", offers("dummy", 2))
			ctx, enough := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = unable.Take(ctx)
			}()
			late := harness.Request("alpha-late")
			late.DelayMS = 100
			b.Submit(t, special("alpha-unfit"))
			b.Submit(t, late)
			harness.Eventually(t, "both parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 2 && b.left(t) == 2 })
			enough()
			<-ended
			leave()
			for name, c := range b.consumers(t) {
				if strings.HasPrefix(name, subjects.ConsumerOfClass(2, "")) {
					harness.Must(t, spoil(t.Context(), b.admin, c))
				}
			}
			jobs := keepTaking(t, b.NewWorker(t, "d"))
			for range 2 {
				j := next(t, jobs)
				harness.Must(t, j.Done(t.Context(), outcome(j)))
			}
			harness.Eventually(t, "an empty queue", 5*time.Minute, func() bool { return b.left(t) == 0 })
		})
	}
}

// TestParkedRequestsAreNotListed: a trainer may have a million of them. The janitor
// lists them only if some have no consumer.
func TestParkedRequestsAreNotListed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	late := harness.Request("alpha-late")
	late.DelayMS = time.Hour.Milliseconds()
	b.Submit(t, late)
	keepTaking(t, b.Worker)
	harness.Eventually(t, "it is parked", 5*time.Minute, func() bool { return b.parked(t, 2) == 1 && b.left(t) == 1 })
	conn := b.admin.Conn()
	asked, err := conn.SubscribeSync("$JS.API.STREAM.INFO." + subjects.Queue("alpha"))
	harness.Must(t, err)
	rounds, err := conn.SubscribeSync("$KV.lease.janitor")
	harness.Must(t, err)
	harness.Must(t, conn.Flush())
	for range 12 {
		_, err := rounds.NextMsg(time.Minute)
		harness.Must(t, err)
	}
	n, _, err := asked.Pending()
	harness.Must(t, err)
	if n == 0 {
		t.Fatal("nothing was heard of the janitor's requests")
	}
	for range n {
		m, err := asked.NextMsg(time.Minute)
		harness.Must(t, err)
		if strings.Contains(string(m.Data), "subjects_filter") {
			t.Fatalf("it asked for %s", m.Data)
		}
	}
}

// Without room for a copy, or with too many classes, requests stay on their lane
// and reach a worker that can run them.
func TestRequestsThatCannotBeParkedStillRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	const kinds, full = 34, 2
	patient := func(c *queue.WorkerConfig) { c.Timing.NoCapable = time.Hour }
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: kinds + full}))
	jobs := keepTaking(t, b.NewWorker(t, "a", offers("dummy", 1), patient))
	b.submitAll(t, 2, kinds, func(i int) schema.Request {
		r := special(numbered("kind", i))
		r.Sandbox.Pids = int64(100 + i)
		return r
	})
	harness.Eventually(t, "as many parked as may be", 5*time.Minute, func() bool { return b.parked(t, 2) == 32 && b.left(t) == kinds })
	b.submitAll(t, 1, full, func(i int) schema.Request { return special(numbered("full", i)) })
	able := keepTaking(t, b.NewWorker(t, "d", offers("special", 1), patient))
	for range kinds + full {
		select {
		case j := <-able:
			harness.Must(t, j.Done(t.Context(), outcome(j)))
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d requests are left", b.left(t))
		}
	}
	select {
	case j := <-jobs:
		t.Fatalf("%s went to a worker that cannot run it", j.Request.ID)
	default:
	}
}
