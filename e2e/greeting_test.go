package e2e_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// greet lets each agent greet once; change sets further fields of the requests. The
// model says hello. Each agent has a subtest: check gets its result, and whether has
// returned true for one of its calls.
func (b *bench) greet(t *testing.T, names []string, change func(*schema.Request), has func(*trainer.Call) bool, check func(t *testing.T, r schema.Result, has bool)) {
	t.Helper()
	b.worker(t, "", "--sandboxes", "local", "--slots", "3")
	submitter, answering := newTrainer(t, b, "nobody"), newTrainer(t, b, "0")
	var mu sync.Mutex
	knows := map[schema.ID]bool{}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = answering.Serve(context.WithoutCancel(t.Context()), func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
			key, err := schema.ParseKey(c.Key)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			knows[key.Rollout] = knows[key.Rollout] || has(c)
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Hello."}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 1, CompletionTokens: 1}}, nil
		})
	}()
	defer func() { answering.Close(); <-served }()
	var all []schema.Request
	for _, name := range names {
		r := schema.Request{
			ID: schema.ID("local-" + name), Trainer: "local", Task: schema.Task{Name: "greet", Instruction: "Greet me."},
			Agent: schema.AgentChoice{Name: name}, Sandbox: schema.SandboxChoice{Backend: "local"},
		}
		change(&r)
		all = append(all, r)
	}
	harness.Must(t, submitter.Submit(t.Context(), inDefaultShard(all)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range names {
		r, err := submitter.NextResult(ctx)
		harness.Must(t, err)
		t.Run(string(r.ID), func(t *testing.T) {
			mu.Lock()
			defer mu.Unlock()
			check(t, r, knows[r.ID])
		})
	}
}
