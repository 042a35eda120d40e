package e2e_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestEveryAgentGetsALongSystemPrompt checks that the model of each agent gets a
// system prompt that is longer than Linux allows a variable or an argument to be.
func TestEveryAgentGetsALongSystemPrompt(t *testing.T) {
	t.Parallel()
	const size, mark = 300_000, "The last word is heliotrope."
	prompt := strings.Repeat("Be careful. ", size/12) + mark
	b := newBench(t)
	var names []string
	for _, s := range agents.All() {
		if s.SystemPrompt {
			if len(s.Packages) > 0 {
				b.need(t, "local", s.Name)
			}
			names = append(names, s.Name)
		}
	}
	b.worker(t, "", "--sandboxes", "local", "--slots", "3")
	submitter, answering := newTrainer(t, b, "nobody"), newTrainer(t, b, "0")
	var mu sync.Mutex
	told := map[schema.ID]bool{}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = answering.Serve(context.WithoutCancel(t.Context()), func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
			key, err := schema.ParseKey(c.Key)
			if err != nil {
				return nil, err
			}
			all, err := json.Marshal(c.Messages)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			told[key.Rollout] = told[key.Rollout] || len(all) > size && strings.Contains(string(all), mark)
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Hello."}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 1, CompletionTokens: 1}}, nil
		})
	}()
	defer func() { answering.Close(); <-served }()
	var all []schema.Request
	for _, name := range names {
		all = append(all, schema.Request{
			ID: schema.ID("local-" + name), Trainer: "local", Task: schema.Task{Name: "greet", Instruction: "Greet me."}, MaxAttempts: 1,
			Agent: schema.AgentChoice{Name: name, SystemPrompt: prompt}, Sandbox: schema.SandboxChoice{Backend: "local"},
		})
	}
	harness.Must(t, submitter.Submit(t.Context(), all))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for range names {
		r, err := submitter.NextResult(ctx)
		harness.Must(t, err)
		t.Run(r.Agent, func(t *testing.T) {
			mu.Lock()
			defer mu.Unlock()
			if !told[r.ID] || r.Status != schema.StatusDone {
				t.Errorf("its model got the system prompt: %v; %s, %v", told[r.ID], r.Status, r.Fault)
			}
		})
	}
}
