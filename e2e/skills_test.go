package e2e_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

const skill = `---
name: greet-quietly
description: How to greet without a sound.
---
Greet quietly.
`

// TestEveryAgentReadsItsSkills checks that each agent with support for skills
// tells its model of a skill of the task.
func TestEveryAgentReadsItsSkills(t *testing.T) {
	b := newBench(t)
	var names []string
	for _, s := range agents.All() {
		if s.Skills != "" {
			b.need(t, "local", s.Name)
			names = append(names, s.Name)
		}
	}
	if len(names) < 6 {
		t.Fatalf("only %q know skills", names)
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
			all, err := json.Marshal([]any{c.Messages, c.Tools})
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			told[key.Rollout] = told[key.Rollout] || strings.Contains(string(all), "greet-quietly")
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Hello."}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 1, CompletionTokens: 1}}, nil
		})
	}()
	defer func() { answering.Close(); <-served }()
	var all []schema.Request
	for _, name := range names {
		all = append(all, schema.Request{
			ID: schema.ID("local-" + name), Trainer: "local", Task: schema.Task{Name: "greet", Instruction: "Greet me."},
			Agent: schema.AgentChoice{Name: name, SkillsDir: "/opt/skills"}, Sandbox: schema.SandboxChoice{Backend: "local"},
			Setup: []schema.Command{{Run: `mkdir -p /opt/skills/greet-quietly && printf '%s' "$SKILL" > /opt/skills/greet-quietly/SKILL.md`, Env: map[string]string{"SKILL": skill}}},
		})
	}
	if err := submitter.Submit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for range names {
		r, err := submitter.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(r.Agent, func(t *testing.T) {
			mu.Lock()
			defer mu.Unlock()
			if !told[r.ID] || r.Status != schema.StatusDone || len(r.Notes) > 0 {
				t.Errorf("its model is told of the skill: %v; %s, %v, notes %q", told[r.ID], r.Status, r.Fault, r.Notes)
			}
		})
	}
}
