package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// garbage is a policy with nonsensical answers, like one before training.
type garbage struct {
	mu   sync.Mutex
	sent map[string]*schema.Reply // by call
	seen map[schema.ID]string     // messages of each rollout
}

// nonsense lists the answers in order: each is a text, or the name and arguments
// of a tool. SHELL is replaced by the name of the agent's shell tool.
func nonsense() []saying {
	return []saying{
		{tool: "SHELL", arguments: ``},
		{tool: "SHELL", arguments: `{"command": "echo cut o`},
		{tool: "SHELL", arguments: `[]`},
		{text: `half \ud83d of it, \ude00 and the other`, tool: "SHELL", arguments: `{"command": 17, "cmd": ["a"], "description": {}}`},
		{tool: "SHELL", arguments: `null`},
		{tool: "no_such_tool", arguments: `{"a": 1.0}`},
		{tool: "", arguments: `{}`},
		{tool: "SHELL", arguments: `{"command": "echo \ud83d", "description": "Half a character"}`},
		{tool: "SHELL", arguments: strings.Repeat(`{"command":`, 2000)},
		{text: strings.Repeat("word ", 40_000), tool: "SHELL", arguments: `{"command": "true", "description": "Nothing"}`},
		{text: ""},
	}
}

type saying struct{ text, tool, arguments string }

func (g *garbage) answer(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	for _, m := range c.Messages {
		g.seen[key.Rollout] += string(m)
	}
	g.mu.Unlock()
	text := func(s string) string {
		b, _ := json.Marshal(s) // strings always encode
		return strings.NewReplacer(`\\ud83d of`, `\ud83d of`, `\\ude00 and`, `\ude00 and`).Replace(string(b))
	}
	all := nonsense()
	say := all[min(key.Call, len(all))-1]
	message, finish := `{"role":"assistant","content":`+text(say.text), "stop"
	switch tool := say.tool; {
	case key.Call > len(all) || len(c.Tools) == 0:
		message = `{"role":"assistant","content":"Done."`
	case say.arguments != "" || tool != "":
		if tool == "SHELL" {
			tool = shellOf(&c.Call)
		}
		message += fmt.Sprintf(`,"tool_calls":[{"index":0,"id":"call_%d","type":"function","function":{"name":%s,"arguments":%s}}]`, key.Call, text(tool), text(say.arguments))
		finish = "tool_calls"
	}
	r := &schema.Reply{
		Message: json.RawMessage(message + "}"), FinishReason: finish, Usage: schema.Usage{PromptTokens: 7, CompletionTokens: 2},
		CompletionIDs: schema.PackTokenIDs([]int32{int32(key.Call), 424242}), Logprobs: schema.PackLogprobs([]float32{-0.5, -1}),
	}
	if key.Call%2 == 0 { // half of the answers are streamed
		if err := c.Emit(&schema.Delta{Delta: r.Message, CompletionIDs: r.CompletionIDs, Logprobs: r.Logprobs}); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent[c.Key] = r
	return r, nil
}

// shellOf returns the name of the agent's shell tool.
func shellOf(c *schema.Call) string {
	var tools []struct{ Function struct{ Name string } }
	_ = json.Unmarshal(c.Tools, &tools) // a call may have no tools
	for _, name := range []string{"bash", "Bash", "shell", "exec_command", "shell_command", "run_shell_command"} {
		if slices.ContainsFunc(tools, func(t struct{ Function struct{ Name string } }) bool { return t.Function.Name == name }) {
			return name
		}
	}
	return "shell"
}

// TestEveryAgentSurvivesGarbage checks that nonsensical answers of a policy cause
// no fault of the trainer or the worker: the rollout ends as its agent decides,
// and the transcript has the policy's own text and ids.
func TestEveryAgentSurvivesGarbage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	names := []string{"opencode", "pi", "codex", "claude-code", "gemini-cli", "qwen-code"}
	b := newBench(t)
	for _, name := range names {
		b.need(t, "local", name)
	}
	b.worker(t, "", "--sandboxes", "local", "--slots", "3")
	task, err := tasks.Load(copyTask(t, "examples/tasks/hello", nil), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	policy := &garbage{sent: map[string]*schema.Reply{}, seen: map[schema.ID]string{}}
	tr := newTrainer(t, b, "")
	go func() { _ = tr.Serve(t.Context(), policy.answer) }()
	bundle, err := tr.PutBundle(t.Context(), task.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	var all []schema.Request
	for _, name := range names {
		r := task.Request
		r.ID, r.Trainer, r.Agent.Name, r.Task.Bundle, r.Sandbox.Backend = schema.ID("local-"+name), "local", name, bundle, "local"
		r.Gate.Stream, r.Gate.MaxCalls, r.Limits.AgentMS = schema.StreamPass, 40, 300_000
		all = append(all, r)
	}
	if err := tr.Submit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range names {
		r, err := tr.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(r.Agent, func(t *testing.T) { policy.check(t, tr, r) })
	}
}

func (g *garbage) check(t *testing.T, tr *trainer.Trainer, r schema.Result) {
	t.Logf("%d calls, exit %v, fault %v", r.Calls[schema.TagAgent].Count, r.Exit, r.Fault)
	defer func() {
		if t.Failed() {
			t.Logf("it said: %s", clip(artifact(t, tr, r, "agent.stdout.log")+artifact(t, tr, r, "agent.stderr.log")))
		}
	}()
	if r.Fault != nil && r.Fault.Who != schema.WhoAgent {
		t.Fatalf("it ended by %+v", r.Fault)
	}
	if n := r.Calls[schema.TagAgent].Count; n < 3 {
		t.Errorf("it ended after %d calls", n)
	}
	plain, err := zstd.NewReader(strings.NewReader(artifact(t, tr, r, "transcript.jsonl.zst")))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	replies := 0
	lines := bufio.NewReader(plain)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var l schema.TranscriptLine
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%v in %.200s", err, line)
		}
		if l.Fault != nil {
			t.Errorf("call %d: %v", l.Call, l.Fault)
		}
		if l.Reply == nil {
			continue
		}
		replies++
		g.mu.Lock()
		sent := g.sent[fmt.Sprintf("%s/%d/%d", r.ID, r.Attempt, l.Call)]
		g.mu.Unlock()
		if sent == nil || !bytes.Equal(sent.Message, l.Reply.Message) || !bytes.Equal(sent.CompletionIDs, l.Reply.CompletionIDs) || !bytes.Equal(sent.Logprobs, l.Reply.Logprobs) {
			t.Errorf("call %d: the transcript has %.300s", l.Call, l.Reply.Message)
		}
	}
	if total := r.Calls[schema.TagAgent].Count + r.Calls[schema.TagAux].Count + r.Calls[schema.TagSubagent].Count; replies != total || len(r.Committed) == 0 {
		t.Errorf("the transcript has %d answers of %d, %d reached the agent", replies, total, len(r.Committed))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Agent == "claude-code" || r.Agent == "gemini-cli" { // their dialects need objects for arguments, and the policy wrote other JSON
		for _, own := range []string{`"{\"command\": \"echo cut o"`, `"[]"`, `"null"`} {
			if !strings.Contains(g.seen[r.ID], `"arguments":`+own) {
				t.Errorf("the conversation lost the policy's own %s", own)
			}
		}
	}
}
