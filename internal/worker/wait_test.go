package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// waits collects the wait events of a test.
type waits struct {
	mu    sync.Mutex
	waits []schema.WaitEvent
	news  chan struct{}
}

func (b *bench) waits(t *testing.T) *waits {
	t.Helper()
	w := &waits{news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	tap, err := b.nats.Ops(t).Events.Tap(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tap.Run(ctx, func(_ broker.Place, e schema.Event) {
			if e.Wait == nil {
				return
			}
			w.mu.Lock()
			w.waits = append(w.waits, *e.Wait)
			w.mu.Unlock()
			select {
			case w.news <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// have reports whether the collected events satisfy ok.
func (w *waits) have(ok func([]schema.WaitEvent) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return ok(w.waits)
}

// until waits until the collected events satisfy ok.
func (w *waits) until(t *testing.T, what string, ok func([]schema.WaitEvent) bool) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		if w.have(ok) {
			return
		}
		select {
		case <-w.news:
		case <-limit.C:
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Fatalf("%s was not reported: %+v", what, w.waits)
		}
	}
}

func has(is func(schema.WaitEvent) bool) func([]schema.WaitEvent) bool {
	return func(all []schema.WaitEvent) bool {
		for _, w := range all {
			if is(w) {
				return true
			}
		}
		return false
	}
}

func badAnswer() error {
	f := schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "upstream lab: the answer is refused: logprobs: 1 values")
	f.Status = http.StatusBadGateway
	return f
}

// TestAnswersThatAreRefusedEndTheRollout checks that three refused answers in a
// row end the rollout. The fault names the engine and the field, with a trainer
// as well as with a proxy.
func TestAnswersThatAreRefusedEndTheRollout(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	refuse := func(context.Context, *schema.Call) (*schema.Reply, error) {
		asked.Add(1)
		return nil, badAnswer()
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{{Name: "lab", Answer: func(ctx context.Context, c *schema.Call, _ func(*schema.Delta) error) (*schema.Reply, error) {
			return refuse(ctx, c)
		}}}
	})
	b.serve(t, refuse)
	w := b.waits(t)
	for id, mode := range map[schema.ID]schema.Mode{"alpha-1": schema.ModeProxy, "alpha-2": schema.ModeGate} {
		asked.Store(0)
		r := request(id)
		if r.Mode = mode; mode == schema.ModeProxy {
			r.Model.Upstream = "lab"
		}
		res := b.result(t, r)
		if f := res.Fault; res.Status != schema.StatusFailed || f == nil || f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, "upstream lab") || !strings.Contains(f.Message, "logprobs") || res.Reward != nil {
			t.Errorf("%s: got %+v", mode, res)
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("%s: the engine was asked %d times", mode, n)
		}
	}
	w.until(t, "the refusal by the engine", has(func(e schema.WaitEvent) bool {
		return e.For == schema.WaitUpstream && e.Name == "lab" && e.Call == 1 && e.Fault != nil && strings.Contains(e.Fault.Message, "logprobs")
	}))
	w.until(t, "the refusal by the trainer", has(func(e schema.WaitEvent) bool {
		return e.For == schema.WaitTrainer && e.Fault != nil && strings.Contains(e.Fault.Message, "logprobs")
	}))
}

// TestWaitsAreReported checks that an event reports at once the reason for which a
// call waits, and another one its end.
func TestWaitsAreReported(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	lab := models.Upstream{Name: "lab", Answer: func(context.Context, *schema.Call, func(*schema.Delta) error) (*schema.Reply, error) {
		if asked.Add(1) == 1 {
			return nil, &schema.Fault{Code: "upstream", Message: "busy", Status: http.StatusServiceUnavailable}
		}
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
	}}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{lab}
	})
	w := b.waits(t)
	r := request("alpha-1")
	r.Mode, r.Model.Upstream = schema.ModeProxy, "lab"
	if res := b.result(t, r); res.Fault != nil {
		t.Errorf("got %+v", res)
	}
	for _, ended := range []bool{false, true} {
		w.until(t, "the busy engine", has(func(e schema.WaitEvent) bool {
			return e.For == schema.WaitUpstream && e.Name == "lab" && e.Ended == ended
		}))
	}
	b.trainer.Hold(trainer.Selection{Only: func(id schema.ID) bool { return id != "alpha-1" }})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan schema.Result)
	go func() {
		defer close(ended)
		for res, err := b.trainer.NextResult(ctx); err == nil; res, err = b.trainer.NextResult(ctx) {
			ended <- res
		}
	}()
	held := has(func(e schema.WaitEvent) bool { return e.For == schema.WaitHold && !e.Ended })
	for n := 2; !w.have(held); n++ { // a rollout that ends was faster than the word of the hold
		r.ID = schema.ID(fmt.Sprintf("alpha-%d", n))
		if err := b.trainer.Submit(ctx, []schema.Request{r}); err != nil {
			t.Fatal(err)
		}
		for over := false; !over && !w.have(held); {
			select {
			case <-w.news:
			case _, open := <-ended:
				if over = true; !open {
					t.Fatal("the hold was not reported")
				}
			}
		}
	}
	b.trainer.Resume()
	if res := <-ended; res.Fault != nil || res.ID != r.ID {
		t.Errorf("got %+v", res)
	}
	w.until(t, "the end of the hold", has(func(e schema.WaitEvent) bool { return e.For == schema.WaitHold && e.Ended }))
	cancel()
	for range ended { // until the goroutine ends
	}
}

// TestAWaitForASlotIsReported makes two calls at once where one may be open.
func TestAWaitForASlotIsReported(t *testing.T) {
	t.Parallel()
	both := func(ctx context.Context, p *dummy.Proc) int {
		var calls sync.WaitGroup
		var failed atomic.Int32
		for i := range 2 {
			calls.Go(func() {
				if status, _ := ask(ctx, p, fmt.Sprintf("question %d", i)); status != http.StatusOK {
					failed.Add(1)
				}
			})
		}
		calls.Wait()
		return int(failed.Load())
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": both}))
	w := b.waits(t)
	waiting := make(chan struct{})
	b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		select {
		case <-waiting:
			return ok(ctx, c)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	r := request("alpha-slot")
	r.Gate.MaxParallel = 1
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the wait for a slot", has(func(e schema.WaitEvent) bool { return e.For == schema.WaitSlot && e.Call > 0 && !e.Ended }))
	close(waiting)
	if res := b.next(t); res.Exit == nil || !res.Exit.OK() || len(res.Committed) != 2 {
		t.Errorf("got %+v", res)
	}
	w.until(t, "the end of the wait", has(func(e schema.WaitEvent) bool { return e.For == schema.WaitSlot && e.Ended }))
}

// late is a backend. Its sandboxes are ready when ready is closed.
type late struct {
	sandboxes.Backend
	ready chan struct{}
}

func (b late) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	select {
	case <-b.ready:
		return b.Backend.Create(ctx, s)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestAWaitForASandboxIsReported: the event names the image.
func TestAWaitForASandboxIsReported(t *testing.T) {
	t.Parallel()
	ready := make(chan struct{})
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) {
		c.Backends = []sandboxes.Backend{late{c.Backends[0], ready}}
	})
	w := b.waits(t)
	r := request("alpha-late")
	r.Sandbox.Image, r.Limits.ReadyMS = "an-image:1", 60_000
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the wait for the sandbox", has(func(e schema.WaitEvent) bool {
		return e.For == schema.WaitSandbox && e.Name == "an-image:1" && e.Note != "" && e.MS >= 2000 && !e.Ended
	}))
	close(ready)
	if res := b.next(t); res.Fault != nil {
		t.Errorf("got %+v", res)
	}
	w.until(t, "the end of the wait", has(func(e schema.WaitEvent) bool { return e.For == schema.WaitSandbox && e.Ended }))
}
