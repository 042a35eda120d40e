package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// serve runs Serve until the test ends.
func serve(t *testing.T, tr *trainer.Trainer, f trainer.Answerer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = tr.Serve(ctx, f)
	}()
	t.Cleanup(func() { cancel(); <-left })
}

func TestServeAnswersNoMoreCallsAtOnceThanItsLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.Parallel = 3 })
	var mu sync.Mutex
	open, most := 0, 0
	arrived, release := make(chan struct{}, 32), make(chan struct{})
	serve(t, b.trainer, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		mu.Lock()
		open++
		most = max(most, open)
		mu.Unlock()
		arrived <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		mu.Lock()
		open--
		mu.Unlock()
		return text("ok"), nil
	})
	var all []<-chan answer
	for i := range 12 {
		all = append(all, b.ask(t.Context(), 1, i+1, nil))
	}
	for range 3 {
		<-arrived
	}
	close(release)
	for _, a := range all {
		said(t, <-a, "ok")
	}
	if most != 3 {
		t.Fatalf("%d calls were answered at once", most)
	}
}

// TestCloseDoesNotWaitForAnAnswerer closes the trainer while an Answerer ignores its
// context, for the first call of a rollout and for a later one.
func TestCloseDoesNotWaitForAnAnswerer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	begun, release := make(chan struct{}, 2), make(chan struct{})
	serve(t, b.trainer, func(context.Context, *trainer.Call) (*schema.Reply, error) {
		begun <- struct{}{}
		<-release
		return text("late"), nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for n := range 2 {
		b.ask(ctx, 1, n+1, nil)
		<-begun
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		b.trainer.Close()
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("Close waits for an Answerer")
	}
	close(release)
	<-closed
}

// TestACallHasItsGenerationAndItsBase: the base has the ids of its answer.
func TestACallHasItsGenerationAndItsBase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sample := trainer.Sample{PromptIDs: []int32{1, 2}, CompletionIDs: []int32{3}, Logprobs: []float32{-1}, Version: "v1"}
	calls := make(chan *trainer.Call, 2)
	serve(t, b.trainer, func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
		calls <- c
		return trainer.NewReply(trainer.Message{Content: "ok"}, sample)
	})
	caller := b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	ask := func(n int, shares schema.Shares, messages ...string) string {
		t.Helper()
		c := schema.Call{V: 1, Key: fmt.Sprintf("alpha-1/1/%d", n), Tag: schema.TagAgent, Dialect: "chat", Shares: shares}
		for _, m := range messages {
			c.Messages = append(c.Messages, json.RawMessage(`{"role":"user","content":"`+m+`"}`))
		}
		gen := ""
		if err := caller.Complete(t.Context(), c, func(f schema.Frame) error { gen = f.Gen; return nil }); err != nil {
			t.Fatal(err)
		}
		return gen
	}
	gen := ask(1, schema.Shares{}, "a", "b")
	first := <-calls
	if first.Gen != gen || first.Base != nil {
		t.Fatalf("got %+v, the worker has %s", first, gen)
	}
	ask(2, schema.Shares{Base: 1, Keep: 2, Tools: true, Params: true}, "a", "b", "c")
	second := <-calls
	base := second.Base
	if base == nil || base.Number != 1 || base.Messages != 2 || !base.Tools || base.Gen != gen || base.PromptIDs.Len() != 2 || base.CompletionIDs.Unpack()[0] != 3 || len(second.Messages) != 3 {
		t.Fatalf("got %+v of %+v", base, second)
	}
}

// TestALateReplyIsNoBase: the reply to a generation that was aborted is not that of the
// call on which later ones are based.
func TestALateReplyIsNoBase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	caller := b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	ask := func(n int, shares schema.Shares, messages ...string) <-chan error {
		c := schema.Call{V: 1, Key: fmt.Sprintf("alpha-1/1/%d", n), Tag: schema.TagAgent, Dialect: "chat", Shares: shares}
		for _, m := range messages {
			c.Messages = append(c.Messages, json.RawMessage(`{"role":"user","content":"`+m+`"}`))
		}
		end := make(chan error, 1)
		go func() { end <- caller.Complete(t.Context(), c, func(schema.Frame) error { return nil }) }()
		return end
	}
	reply := func(version string, ids ...int32) *schema.Reply {
		r, err := trainer.NewReply(trainer.Message{Content: version}, trainer.Sample{CompletionIDs: ids, Version: version})
		harness.Must(t, err)
		return r
	}
	first := ask(1, schema.Shares{}, "a")
	aborted := next(t, b.trainer)
	if n := b.trainer.Abort(trainer.Selection{}); n != 1 {
		t.Fatalf("%d generations were ended", n)
	}
	made := next(t, b.trainer)
	harness.Must(t, made.Reply(reply("v2", 2)))
	harness.Must(t, <-first)
	if err := aborted.Reply(reply("v1", 1)); !errors.Is(err, trainer.ErrOver) {
		t.Fatalf("got %v", err)
	}
	second := ask(2, schema.Shares{Base: 1, Keep: 1, Tools: true, Params: true}, "a", "b")
	p := next(t, b.trainer)
	if base := p.Call.Base; base == nil || base.Gen != made.Call.Gen || base.CompletionIDs.Unpack()[0] != 2 {
		t.Errorf("the base is %+v, want generation %s", base, made.Call.Gen)
	}
	harness.Must(t, p.Reply(reply("v2", 3)))
	harness.Must(t, <-second)
}

// TestAnAbortedGenerationIsMadeAgain: after the hold the call gets a new
// generation, and the aborted one has no effect.
func TestAnAbortedGenerationIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.Shard = "other" })
	ended := make(chan schema.ID, 1)
	tr := b.start(t, func(c *trainer.Config) { c.Shard = "x"; c.Ended = func(id schema.ID) { ended <- id } })
	gens := make(chan string, 4)
	version, began := "v1", make(chan struct{}, 4)
	var mu sync.Mutex
	serve(t, tr, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		mu.Lock()
		v := version
		mu.Unlock()
		gens <- c.Gen
		if v == "v1" {
			began <- struct{}{}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return trainer.NewReply(trainer.Message{Content: v}, trainer.Sample{Version: v})
	})
	r := harness.Request("alpha-7")
	r.Shard = "x"
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	j, err := b.worker.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	final := make(chan answer, 1)
	held := make(chan struct{}, 16)
	var gen string
	go func() {
		c := schema.Call{V: 1, Key: "alpha-7/1/1", Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}
		reply, err := testenv.Complete(t.Context(), b.calls.Caller(j.Request, j), c, func(f schema.Frame) error {
			if f.Held {
				held <- struct{}{}
			}
			gen = f.Gen
			return nil
		})
		final <- answer{reply, err}
	}()
	<-began
	tr.Hold(trainer.Selection{})
	if n := tr.Abort(trainer.Selection{Only: func(id schema.ID) bool { return id != "alpha-7" }}); n != 0 {
		t.Fatalf("%d generations of other rollouts were ended", n)
	}
	if n := tr.Abort(trainer.Selection{}); n != 1 {
		t.Fatalf("%d generations were ended", n)
	}
	<-held // the call came again and waits
	mu.Lock()
	version = "v2"
	mu.Unlock()
	tr.Resume()
	said(t, <-final, "v2")
	if first, second := <-gens, <-gens; first == second || gen != second {
		t.Fatalf("generations %s and %s, the worker has %s", first, second, gen)
	}
	if err := j.Done(t.Context(), schema.Result{ID: "alpha-7", Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
		t.Fatal(err)
	}
	if id := <-ended; id != "alpha-7" {
		t.Fatalf("the calls of %s were dropped", id)
	}
}

func TestDialNamesTheWrongField(t *testing.T) {
	t.Parallel()
	var invalid *schema.InvalidError
	if _, err := trainer.Dial(t.Context(), trainer.Config{Name: "No!"}); !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	b := newBench(t)
	b.trainer.Close()
	tr, err := trainer.Dial(t.Context(), trainer.Config{URL: b.nats.URL(), Creds: b.nats.TrainerCreds("alpha"), Name: "alpha"})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if _, err := tr.PutBundle(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
}
