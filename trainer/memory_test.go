package trainer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

const largeReply = 64 << 10 // bytes

// heap returns the memory in use in bytes. Tests that call it run alone, since the memory of
// another test would count.
func heap() int64 {
	runtime.GC()
	runtime.GC() // a second round, since pools keep their content for one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// large answers every call with largeReply bytes.
func large(context.Context, *schema.Call) (*schema.Reply, error) {
	return text(strings.Repeat("x", largeReply)), nil
}

// elsewhere makes the bench's own process answer the calls of another shard: if it
// accepted a call, the worker would wait for its answer.
func elsewhere(c *trainer.Config) { c.Shard = "other" }

// serving starts a process of the trainer that only answers calls.
func (b *bench) serving(t *testing.T) *trainer.Trainer {
	t.Helper()
	tr := b.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = tr.Serve(ctx, trainer.Whole(large))
	}()
	t.Cleanup(func() { cancel(); <-left })
	return tr
}

// flat fails if the heap grew by more than an eighth of the given bytes, which
// went through the trainer since before.
func flat(t *testing.T, before, through int64) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		grown := heap() - before
		if grown < through/8 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d MB of answers left %d MB in memory", through>>20, grown>>20)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestAProcessThatOnlyAnswersKeepsNothingOfEndedRollouts(t *testing.T) {
	b := newBench(t, elsewhere)
	b.serving(t)
	const calls = 4
	rollouts := func(from, n int) {
		for i := range n {
			id := schema.ID(fmt.Sprintf("alpha-%d", from+i))
			r := harness.Request(id)
			r.Shard = schema.DefaultShard
			if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
				t.Fatal(err)
			}
			j, err := b.worker.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for c := range calls {
				key := schema.Key{Rollout: j.Request.ID, Attempt: j.Attempt, Call: c + 1}
				call := schema.Call{V: 1, Key: key.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}
				// A caller of its own, so that only the result shows that the answers arrived.
				if err := b.calls.Caller(j.Request, nil).Complete(t.Context(), call, func(schema.Frame) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.Done(t.Context(), schema.Result{ID: id, Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
				t.Fatal(err)
			}
			if r, err := b.trainer.NextResult(t.Context()); err != nil || r.ID != id {
				t.Fatalf("got %v, %v", r.ID, err)
			}
		}
	}
	rollouts(0, 20)
	before := heap()
	const n = 150
	rollouts(20, n)
	flat(t, before, n*calls*largeReply)
}

func TestAnswersThatTheWorkerHasLeaveMemory(t *testing.T) {
	b := newBench(t, elsewhere)
	b.serving(t)
	caller := b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	ask := func(from, n int) {
		for i := range n {
			call := schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: from + i}.String(), Tag: schema.TagAgent, Dialect: "chat",
				Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}
			if r, err := testenv.Complete(t.Context(), caller, call, func(schema.Frame) error { return nil }); err != nil || len(r.Message) < largeReply {
				t.Fatalf("got %d bytes, %v", len(r.Message), err)
			}
		}
	}
	ask(1, 50)
	before := heap()
	const n = 600
	ask(51, n)
	flat(t, before, n*largeReply)
}
