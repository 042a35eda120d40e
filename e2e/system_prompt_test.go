package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestEveryAgentGetsALongSystemPrompt checks that the model of each agent gets a
// system prompt that is longer than Linux allows a variable or an argument to be.
func TestEveryAgentGetsALongSystemPrompt(t *testing.T) {
	testenv.Slow(t)
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
	b.greet(t, names, func(r *schema.Request) {
		r.Agent.SystemPrompt, r.MaxAttempts = prompt, 1
	}, func(c *trainer.Call) bool {
		all, err := json.Marshal(c.Messages)
		return err == nil && len(all) > size && strings.Contains(string(all), mark)
	}, func(t *testing.T, r schema.Result, has bool) {
		t.Helper()
		if !has || r.Status != schema.StatusDone {
			t.Errorf("its model got the system prompt: %v; %s, %v", has, r.Status, r.Fault)
		}
	})
}
