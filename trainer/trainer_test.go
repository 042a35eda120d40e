package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bench struct {
	shard   string // of trainer
	nats    testenv.NATS
	worker  *queue.Worker
	records *broker.Records
	calls   *modelcall.Client // of worker
	trainer *trainer.Trainer
	leave   func() // ends worker
}

func newBench(t *testing.T, change ...func(*trainer.Config)) *bench {
	t.Helper()
	b := &bench{nats: testenv.StartNATS(t, "alpha")}
	wb := b.nats.Worker(t, "w1")
	side, err := queue.NewWorker(wb, queue.WorkerConfig{Worker: "w1", Instance: "i1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = side.Run(ctx)
	}()
	b.leave = sync.OnceFunc(func() { cancel(); <-left; side.Close() })
	t.Cleanup(b.leave)
	b.worker, b.records = side, wb.Records
	if b.calls, err = modelcall.NewClient(wb, "w1", "i1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.calls.Close)
	var c trainer.Config
	for _, f := range change {
		f(&c)
	}
	b.shard = c.Shard
	b.trainer = b.start(t, change...)
	return b
}

// start starts one process of the trainer. It ends the bench's own one of the same
// shard.
func (b *bench) start(t *testing.T, change ...func(*trainer.Config)) *trainer.Trainer {
	t.Helper()
	c := trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop()}
	for _, f := range change {
		f(&c)
	}
	if b.trainer != nil && c.Shard == b.shard {
		b.trainer.Close()
	}
	tr, err := trainer.Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

type answer struct {
	reply schema.Reply
	err   error
}

// ask makes a model call as a worker does.
func (b *bench) ask(ctx context.Context, attempt, n int, frames func(schema.Frame) error) <-chan answer {
	if frames == nil {
		frames = func(schema.Frame) error { return nil }
	}
	c := schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: attempt, Call: n}.String(), Tag: schema.TagAgent, Dialect: "chat",
		Messages: []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"role":"user","content":"%d"}`, n))}}
	out := make(chan answer, 1)
	go func() {
		r, err := testenv.Complete(ctx, b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil), c, frames)
		out <- answer{r, err}
	}()
	return out
}

func text(s string) *schema.Reply {
	return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"` + s + `"}`), FinishReason: "stop"}
}

func next(t *testing.T, tr *trainer.Trainer) *trainer.Pending {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := tr.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func said(t *testing.T, a answer, want string) {
	t.Helper()
	if a.err != nil || !strings.Contains(string(a.reply.Message), want) {
		t.Fatalf("got %s, %v; want %q", a.reply.Message, a.err, want)
	}
}

func TestNextAndReply(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := b.ask(t.Context(), 1, 1, nil)
	p := next(t, b.trainer)
	if p.Call.Key != "alpha-1/1/1" || string(p.Call.Messages[0]) != `{"role":"user","content":"1"}` {
		t.Fatalf("got %+v", p.Call)
	}
	if err := p.Reply(text("one")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "one")
	if err := p.Reply(text("two")); !errors.Is(err, trainer.ErrOver) {
		t.Fatalf("a second answer: %v", err)
	}
}

func TestOneAnswerPerKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.ask(t.Context(), 1, 1, nil)
	p := next(t, b.trainer)
	again := b.ask(t.Context(), 1, 1, nil) // the same key, before the answer
	if err := p.Reply(text("one")); err != nil {
		t.Fatal(err)
	}
	late := b.ask(t.Context(), 1, 1, nil) // and after the answer
	for _, got := range []<-chan answer{late, again} {
		said(t, <-got, "one")
	}
	_ = first // its frames went to the later requests
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if p, err := b.trainer.Next(ctx); err == nil {
		t.Fatalf("the call was handed out twice: %+v", p.Call)
	}
}

// TestAnAnswerOutlivesAFaultAfterIt: an Abort or a fault after the answer does not begin a
// second generation for a worker that asks again.
func TestAnAnswerOutlivesAFaultAfterIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := b.ask(t.Context(), 1, 1, nil)
	p := next(t, b.trainer)
	harness.Must(t, p.Reply(text("one")))
	said(t, <-got, "one")
	if n := b.trainer.Abort(trainer.Selection{}); n != 0 {
		t.Errorf("%d generations were ended", n)
	}
	if err := p.Fault(schema.Faultf("call", schema.CodeInternal, schema.WhoTrainer, "late")); !errors.Is(err, trainer.ErrOver) {
		t.Errorf("got %v", err)
	}
	again := b.ask(t.Context(), 1, 1, nil)
	other := b.ask(t.Context(), 1, 2, nil)
	p = next(t, b.trainer)
	if p.Call.Key != "alpha-1/1/2" {
		t.Fatalf("%s was handed out again", p.Call.Key)
	}
	harness.Must(t, p.Reply(text("two")))
	said(t, <-other, "two")
	said(t, <-again, "one")
}

func TestStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var mu sync.Mutex
	var seen string
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		mu.Lock()
		defer mu.Unlock()
		if f.Kind == schema.FrameDelta {
			seen += string(f.Delta.Delta)
		}
		return nil
	})
	s := next(t, b.trainer).Stream()
	for _, piece := range []string{`{"content":"a"}`, `{"content":"b"}`} {
		if err := s.Delta(&schema.Delta{Delta: json.RawMessage(piece)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Final(text("ab")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "ab")
	mu.Lock()
	defer mu.Unlock()
	if seen != `{"content":"a"}{"content":"b"}` {
		t.Fatalf("got %s", seen)
	}
}

// TestAFastStreamIsNotAskedAgain although its worker reads slowly at first: the
// pieces wait, and none is lost.
func TestAFastStreamIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const pieces = 3000
	sent, absent, n := make(chan struct{}), 0, 0
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		switch f.Kind {
		case schema.FrameDelta:
			if n++; n == 1 {
				<-sent
			}
		case schema.FrameAbsent:
			absent++
		}
		return nil
	})
	s := next(t, b.trainer).Stream()
	for range pieces {
		if err := s.Delta(&schema.Delta{Delta: json.RawMessage(`{"tool_calls":[{"index":0,"function":{"arguments":"a"}}]}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Final(text("all")); err != nil {
		t.Fatal(err)
	}
	close(sent)
	said(t, <-got, "all")
	if n != pieces || absent != 0 {
		t.Errorf("%d of %d pieces, asked again %d times", n, pieces, absent)
	}
}

func TestHoldKeepsCallsWaiting(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.trainer.Hold(trainer.Selection{})
	held := make(chan struct{})
	var once sync.Once
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Held {
			once.Do(func() { close(held) })
		}
		return nil
	})
	<-held
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := b.trainer.Next(ctx); err == nil {
		t.Fatal("a held call was handed out")
	}
	b.trainer.Resume()
	if err := next(t, b.trainer).Reply(text("after")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "after")
}

// TestAHoldThatNobodyEndsIsNamed: the line about a hold does not hide that about the next one.
func TestAHoldThatNobodyEndsIsNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	var log harness.Buffer
	b := newBench(t, func(c *trainer.Config) { c.Log = zerolog.New(&log) })
	for call := range 2 {
		b.trainer.Hold(trainer.Selection{})
		got := b.ask(t.Context(), 1, call+1, nil)
		harness.Eventually(t, "a line about the hold", 8*time.Second, func() bool {
			return strings.Count(log.String(), "1 model calls are held") == call+1
		})
		b.trainer.Resume()
		harness.Must(t, next(t, b.trainer).Reply(text("after")))
		said(t, <-got, "after")
	}
	if text := log.String(); !strings.Contains(text, "Resume hands them out") || strings.Contains(text, "call Serve") {
		t.Error(text)
	}
}

// TestSomeRolloutsAreHeldAndOthersGoOn in any order of arrival.
func TestSomeRolloutsAreHeldAndOthersGoOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.trainer.Hold(trainer.Selection{Only: func(id schema.ID) bool { return id == "alpha-1" }})
	held := make(chan struct{})
	var once sync.Once
	old := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Held {
			once.Do(func() { close(held) })
		}
		return nil
	})
	<-held
	other := make(chan answer, 1)
	go func() {
		c := schema.Call{V: 1, Key: "alpha-2/1/1", Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user"}`)}}
		r, err := testenv.Complete(t.Context(), b.calls.Caller(harness.Request("alpha-2").WithDefaults(), nil), c, func(schema.Frame) error { return nil })
		other <- answer{r, err}
	}()
	p := next(t, b.trainer)
	if p.Call.Key != "alpha-2/1/1" {
		t.Fatalf("%s was handed out", p.Call.Key)
	}
	if err := p.Reply(text("meanwhile")); err != nil {
		t.Fatal(err)
	}
	said(t, <-other, "meanwhile")
	b.trainer.Resume()
	if err := next(t, b.trainer).Reply(text("after")); err != nil {
		t.Fatal(err)
	}
	said(t, <-old, "after")
}

// TestAPolicyVersionIsHeld: rollouts that it answered wait, others do not.
func TestAPolicyVersionIsHeld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for n, version := range []string{"v1", "v2"} {
		got := b.ask(t.Context(), 1, n+1, nil)
		reply := text("first")
		reply.CompletionIDs = schema.PackTokenIDs([]int32{7})
		reply.Versions = []schema.VersionSpan{{Version: "v0", End: 0}, {Version: version, End: 1}}
		if err := next(t, b.trainer).Reply(reply); err != nil {
			t.Fatal(err)
		}
		said(t, <-got, "first")
	}
	b.trainer.Hold(trainer.Selection{Version: "v1"}) // no longer its newest
	got := b.ask(t.Context(), 1, 3, nil)
	if err := next(t, b.trainer).Reply(text("not held")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "not held")
	b.trainer.Hold(trainer.Selection{Version: "v2"})
	held := make(chan struct{})
	var once sync.Once
	got = b.ask(t.Context(), 1, 4, func(f schema.Frame) error {
		if f.Held {
			once.Do(func() { close(held) })
		}
		return nil
	})
	<-held
	b.trainer.Resume()
	if err := next(t, b.trainer).Reply(text("after")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "after")
}

func TestFaultsAreFinalOrAskedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := b.ask(t.Context(), 1, 1, nil)
	if err := next(t, b.trainer).Fault(&schema.Fault{Code: "busy", Message: "later", Status: 503}); err != nil {
		t.Fatal(err)
	}
	if err := next(t, b.trainer).Fault(&schema.Fault{Code: "bad", Message: "never", Status: 400}); err != nil {
		t.Fatal(err)
	}
	var f *schema.Fault
	if a := <-got; !errors.As(a.err, &f) || f.Message != "never" {
		t.Fatalf("got %v", a.err)
	}
	if a := <-b.ask(t.Context(), 1, 1, nil); !errors.As(a.err, &f) || f.Message != "never" {
		t.Fatalf("a final refusal is kept, got %v", a.err)
	}
}

func TestALowerAttemptIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := b.ask(t.Context(), 1, 1, nil)
	p := next(t, b.trainer)
	newer := b.ask(t.Context(), 2, 1, nil)
	if err := next(t, b.trainer).Reply(text("two")); err != nil {
		t.Fatal(err)
	}
	said(t, <-newer, "two")
	<-p.Context().Done()
	if err := p.Reply(text("one")); !errors.Is(err, trainer.ErrOver) {
		t.Fatalf("the old attempt was answered: %v", err)
	}
	var f *schema.Fault
	if a := <-b.ask(t.Context(), 1, 2, nil); !errors.As(a.err, &f) || f.Status != 409 {
		t.Fatalf("got %v", a.err)
	}
	_ = old
}

func TestCheckRefusesBeforeAccepting(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) {
		c.Check = func(c *schema.Call) *schema.Fault {
			return &schema.Fault{Code: "context_length_exceeded", Message: "300000 tokens", Status: 413}
		}
	})
	var f *schema.Fault
	if a := <-b.ask(t.Context(), 1, 1, nil); !errors.As(a.err, &f) || f.Status != 413 {
		t.Fatalf("got %v", a.err)
	}
}

func TestACallThatIsGivenUpEndsItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan struct{})
	var once sync.Once
	got := b.ask(ctx, 1, 1, func(f schema.Frame) error {
		if f.Kind == schema.FrameAccept {
			once.Do(func() { close(accepted) })
		}
		return nil
	})
	p := next(t, b.trainer)
	<-accepted
	cancel()
	<-got
	<-p.Context().Done()
	if err := p.Reply(text("late")); !errors.Is(err, trainer.ErrOver) {
		t.Fatalf("got %v", err)
	}
}

func TestARestartedTrainerIsAskedAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	accepted := make(chan struct{})
	var once sync.Once
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Kind == schema.FrameAccept {
			once.Do(func() { close(accepted) })
		}
		return nil
	})
	next(t, b.trainer)
	<-accepted
	b.trainer.Close()
	second := b.start(t)
	if testing.Short() {
		t.Skip("SKIPPED in short mode: three missed beats take 15 s")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	p, err := second.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Reply(text("second")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "second")
}

// TestDeltasAreRebuilt sends calls that share messages to a trainer that has
// the base, and to a restarted one without it.
func TestDeltasAreRebuilt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	message := func(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"role":"user","content":"%d"}`, n)) }
	ask := func(n int, shares schema.Shares, messages ...json.RawMessage) <-chan answer {
		out := make(chan answer, 1)
		c := schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: n}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: messages, Tools: json.RawMessage(`[1]`), Shares: shares}
		go func() {
			r, err := testenv.Complete(t.Context(), b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil), c, func(schema.Frame) error { return nil })
			out <- answer{r, err}
		}()
		return out
	}
	check := func(tr *trainer.Trainer, got <-chan answer, want string) {
		t.Helper()
		p := next(t, tr)
		if have := fmt.Sprintf("%s %s", p.Call.Messages, p.Call.Tools); have != want || p.Call.Call.Base != 0 || p.Call.Keep != 0 {
			t.Fatalf("got %s, want %s", have, want)
		}
		if err := p.Reply(text("ok")); err != nil {
			t.Fatal(err)
		}
		said(t, <-got, "ok")
	}
	m1, m2, m3, m9 := message(1), message(2), message(3), message(9)
	check(b.trainer, ask(1, schema.Shares{}, m1), fmt.Sprintf("[%s] [1]", m1))
	check(b.trainer, ask(2, schema.Shares{Base: 1, Keep: 1, Tools: true}, m1, m2), fmt.Sprintf("[%s %s] [1]", m1, m2))
	check(b.trainer, ask(3, schema.Shares{Base: 2, Keep: 1, Tools: true}, m1, m9), fmt.Sprintf("[%s %s] [1]", m1, m9))
	b.trainer.Close()
	second := b.start(t)
	check(second, ask(4, schema.Shares{Base: 2, Keep: 2, Tools: true}, m1, m2, m3), fmt.Sprintf("[%s %s %s] [1]", m1, m2, m3))
	check(second, ask(5, schema.Shares{Base: 4, Keep: 3, Tools: true}, m1, m2, m3), fmt.Sprintf("[%s %s %s] [1]", m1, m2, m3))
}

func TestServeAndResults(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	serving := make(chan error, 1)
	go func() {
		serving <- b.trainer.Serve(ctx, func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
			if strings.HasSuffix(c.Key, "/2") {
				return nil, &schema.Fault{Code: "no", Message: "no", Status: 400}
			}
			return text("served"), nil
		})
	}()
	said(t, <-b.ask(t.Context(), 1, 1, nil), "served")
	if a := <-b.ask(t.Context(), 1, 2, nil); a.err == nil {
		t.Fatal("a fault became an answer")
	}
	if err := b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		j, err := b.worker.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Done(t.Context(), schema.Result{ID: j.Request.ID, Attempt: 1, Status: schema.StatusDone}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[schema.ID]int{}
	if err := b.trainer.Results(t.Context(), func(r schema.Result) { seen[r.ID]++ }); err != nil {
		t.Fatal(err)
	}
	if seen["alpha-1"] != 1 || seen["alpha-2"] != 1 || b.trainer.Outstanding() != 0 {
		t.Fatalf("got %v", seen)
	}
	cancel()
	if err := <-serving; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
