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

const skill = `---
name: greet-quietly
description: How to greet without a sound.
---
Greet quietly.
`

// TestEveryAgentReadsItsSkills checks that each agent with support for skills
// tells its model of a skill of the task.
func TestEveryAgentReadsItsSkills(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
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
	b.greet(t, names, func(r *schema.Request) {
		r.Agent.SkillsDir = "/opt/skills"
		r.Setup = []schema.Command{{Run: `mkdir -p /opt/skills/greet-quietly && printf '%s' "$SKILL" > /opt/skills/greet-quietly/SKILL.md`, Env: map[string]string{"SKILL": skill}}}
	}, func(c *trainer.Call) bool {
		all, err := json.Marshal([]any{c.Messages, c.Tools})
		return err == nil && strings.Contains(string(all), "greet-quietly")
	}, func(t *testing.T, r schema.Result, has bool) {
		t.Helper()
		if !has || r.Status != schema.StatusDone || len(r.Notes) > 0 {
			t.Errorf("its model has the skill: %v; %s, %v, notes %q", has, r.Status, r.Fault, r.Notes)
		}
	})
}
