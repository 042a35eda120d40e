package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// strict is an engine that refuses calls: in one rollout of an agent every second one,
// in another one those without the reasoning of an earlier tool call.
type strict struct {
	script *replay.Script

	mu      sync.Mutex
	refused map[schema.ID]bool // whether the newest turn of the agent was refused
	times   map[schema.ID]int  // refused turns
}

// The words of the engine's refusals.
const (
	everySecond = "every second call is too many for this engine"
	noReasoning = "thinking is enabled but reasoning_content is missing in assistant tool call message"
)

func (s *strict) answer(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	words := ""
	switch thinks := strings.Contains(string(key.Rollout), "thinks"); {
	case !thinks && key.Call%2 == 0:
		words = everySecond
	case thinks && dropped(c):
		words = noReasoning
	}
	if c.Tag == schema.TagAgent {
		s.mu.Lock()
		s.refused[key.Rollout] = words != ""
		if words != "" {
			s.times[key.Rollout]++
		}
		s.mu.Unlock()
	}
	if words != "" {
		return nil, &schema.Fault{Code: schema.CodeUpstream, Message: words, Status: http.StatusBadRequest}
	}
	r, err := s.script.Answer(ctx, c)
	if err == nil {
		r.KeepReasoning = true
	}
	return r, err
}

// dropped reports whether a message with tool calls lacks its reasoning.
func dropped(c *schema.Call) bool {
	for _, m := range c.Messages {
		var one struct {
			Reasoning string            `json:"reasoning_content"`
			Calls     []json.RawMessage `json:"tool_calls"`
		}
		if json.Unmarshal(m, &one) == nil && len(one.Calls) > 0 && one.Reasoning == "" {
			return true
		}
	}
	return false
}

// TestEveryAgentWhoseLastCallWasRefused: an engine refuses every second call. An agent
// that ends after such a call has a fault with the engine's words, with any exit status;
// one that goes on has none. An engine that wants the reasoning of earlier tool calls
// refuses no call, whatever the agent drops.
func TestEveryAgentWhoseLastCallWasRefused(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	names := b.everyAgent(t, "local")
	b.worker(t, "", "--sandboxes", "local", "--slots", "3")
	task, err := tasks.Load(copyTask(t, "examples/tasks/hello", nil), tasks.Options{})
	harness.Must(t, err)
	script, err := replay.Parse([]byte("steps:\n- {run: pwd, reasoning: Where am I?}\n- {run: \"echo 'Hello, world!' > hello.txt\", reasoning: I write it.}\n- {run: cat hello.txt, reasoning: I look.}\n- text: Done.\n"))
	harness.Must(t, err)
	engine := &strict{script: script, refused: map[schema.ID]bool{}, times: map[schema.ID]int{}}
	tr := newTrainer(t, b, "")
	go func() { _ = tr.Serve(t.Context(), trainer.Whole(engine.answer)) }()
	bundle, err := tr.PutBundle(t.Context(), task.Bundle)
	harness.Must(t, err)
	var all []schema.Request
	for _, name := range names {
		for _, kind := range []string{"refused-", "thinks-"} {
			r := task.Request
			r.ID, r.Trainer, r.Agent.Name, r.Task.Bundle, r.Sandbox.Backend = schema.ID("local-"+kind+name), "local", name, bundle, "local"
			r.Gate.MaxCalls, r.Limits.AgentMS = 40, 300_000
			all = append(all, r)
		}
	}
	harness.Must(t, tr.Submit(t.Context(), all))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range all {
		r, err := tr.NextResult(ctx)
		harness.Must(t, err)
		t.Run(strings.TrimPrefix(string(r.ID), "local-"), func(t *testing.T) { engine.check(t, tr, &r) })
	}
}

func (s *strict) check(t *testing.T, tr *trainer.Trainer, r *schema.Result) {
	s.mu.Lock()
	last, times := s.refused[r.ID], s.times[r.ID]
	s.mu.Unlock()
	t.Logf("%d calls, %d refused, exit %v, fault %v", r.Calls[schema.TagAgent].Count, times, r.Exit, r.Fault)
	thinks := strings.Contains(string(r.ID), "thinks")
	switch {
	case thinks && (last || times > 0 || r.Fault != nil || r.Reward == nil || *r.Reward != 1):
		t.Errorf("its reasoning did not come back: reward %v", r.Reward)
	case !thinks && times == 0:
		t.Error("no call was refused")
	case !thinks && last != (r.Fault != nil && r.Fault.Code == schema.CodeRefused && r.Fault.Who == schema.WhoAgent && strings.Contains(r.Fault.Message, everySecond)):
		t.Errorf("its last call was refused: %t", last)
	case !thinks && !last && r.Fault != nil:
		t.Errorf("it went on, and has a fault")
	}
	if t.Failed() {
		t.Logf("it said: %s", clip(artifact(t, tr, *r, "agent.stdout.log")+artifact(t, tr, *r, "agent.stderr.log")))
	}
}
