// Package replay answers model calls from a script, for tests, demonstrations
// and deterministic re-runs. The call itself determines the step that answers
// it (the number of assistant messages in its conversation), so a restart or a
// repeated call changes nothing.
package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/strictyaml"
	"github.com/turngate/turngate/schema"
)

// Script is a replay file.
type Script struct {
	Steps []Step `yaml:"steps"`
	// Aux answers calls that offer no tools, such as one for a title, without
	// using up a step. Empty: such calls use steps too.
	Aux string `yaml:"aux"`
}

// Step answers one call.
type Step struct {
	Text      string `yaml:"text"`
	Reasoning string `yaml:"reasoning"`
	// Run is a shell command for the agent's own shell tool.
	Run string `yaml:"run"`
	// Tools are calls by name, with their arguments.
	Tools []Tool `yaml:"tools"`
	// Fault refuses the call.
	Fault   *Fault `yaml:"fault"`
	DelayMS int64  `yaml:"delay_ms"` // delay before the answer, in milliseconds
}

// Tool is one tool call.
type Tool struct {
	Name string         `yaml:"name"`
	Args map[string]any `yaml:"args"`
}

// Fault is a refusal.
type Fault struct {
	Status       int    `yaml:"status"`
	Code         string `yaml:"code"`
	Message      string `yaml:"message"`
	AgentMessage string `yaml:"agent_message"`
	RetryAfterMS int64  `yaml:"retry_after_ms"`
}

// Load reads a script from a file.
func Load(path string) (*Script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the replay script: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("replay script %s: %w", path, err)
	}
	return s, nil
}

// Parse reads a script; unknown keys are errors.
func Parse(data []byte) (*Script, error) {
	var s Script
	if err := strictyaml.Decode(data, &s); err != nil {
		return nil, err
	}
	if len(s.Steps) == 0 {
		return nil, errors.New("steps: want at least one")
	}
	for i, st := range s.Steps {
		if st.Text == "" && st.Run == "" && len(st.Tools) == 0 && st.Fault == nil {
			return nil, fmt.Errorf("steps[%d]: want text, run, tools or fault", i)
		}
		if st.DelayMS < 0 {
			return nil, fmt.Errorf("steps[%d].delay_ms: %d is not valid: want 0 or more", i, st.DelayMS)
		}
	}
	return &s, nil
}

// Answer is a function for trainer.Serve.
func (s *Script) Answer(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
	var tools []toolSpec
	if len(c.Tools) > 0 {
		if err := json.Unmarshal(c.Tools, &tools); err != nil {
			return nil, refuse("tools that cannot be read: %v", rawjson.Plain(err))
		}
	}
	if s.Aux != "" && len(tools) == 0 {
		return reply(c, map[string]any{"role": "assistant", "content": s.Aux}, "stop"), nil
	}
	n, err := turns(c)
	if err != nil {
		return nil, err
	}
	if n >= len(s.Steps) {
		return nil, refuse("the replay script has run out: it has %d steps and the agent asks for step %d", len(s.Steps), n+1)
	}
	st := s.Steps[n]
	if err := sleep(ctx, time.Duration(st.DelayMS)*time.Millisecond); err != nil {
		return nil, err
	}
	if st.Fault != nil {
		f := schema.Faultf("call", st.Fault.Code, schema.WhoTrainer, "%s", st.Fault.Message)
		f.Status, f.AgentMessage, f.RetryAfterMS = st.Fault.Status, st.Fault.AgentMessage, st.Fault.RetryAfterMS
		if f.Code == "" {
			f.Code = "replay"
		}
		return nil, f
	}
	return st.reply(c, n, tools)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// turns counts the assistant messages so far.
func turns(c *schema.Call) (int, error) {
	n := 0
	for i, raw := range c.Messages {
		var m struct {
			Role string `json:"role"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			return 0, refuse("messages[%d] cannot be read: %v", i, rawjson.Plain(err))
		}
		if m.Role == "assistant" {
			n++
		}
	}
	return n, nil
}

func refuse(format string, args ...any) *schema.Fault {
	f := schema.Faultf("call", "replay", schema.WhoTrainer, format, args...)
	f.Status = 400
	return f
}

func (st *Step) reply(c *schema.Call, n int, tools []toolSpec) (*schema.Reply, error) {
	m := map[string]any{"role": "assistant", "content": nil}
	if st.Text != "" {
		m["content"] = st.Text
	}
	if st.Reasoning != "" {
		m["reasoning_content"] = st.Reasoning
	}
	calls := slices.Clone(st.Tools)
	if st.Run != "" {
		t, err := shellCall(tools, st.Run)
		if err != nil {
			return nil, err
		}
		calls = append(calls, t)
	}
	if len(calls) == 0 {
		return reply(c, m, "stop"), nil
	}
	var out []map[string]any
	for i, t := range calls {
		args, err := json.Marshal(t.Args)
		if err != nil {
			return nil, refuse("step %d: arguments of %s: %v", n+1, t.Name, err)
		}
		out = append(out, map[string]any{
			"id": fmt.Sprintf("call_%d_%d", n+1, i+1), "type": "function",
			"function": map[string]any{"name": t.Name, "arguments": string(args)},
		})
	}
	m["tool_calls"] = out
	return reply(c, m, "tool_calls"), nil
}

func reply(c *schema.Call, message map[string]any, finish string) *schema.Reply {
	raw, err := json.Marshal(message)
	if err != nil {
		raw = []byte(`{"role":"assistant","content":""}`)
	}
	prompt := len(c.Tools)
	for _, m := range c.Messages {
		prompt += len(m)
	}
	// Without a model there are no tokens. Four bytes each is a guess that
	// keeps the budgets of agents plausible.
	return &schema.Reply{Message: raw, FinishReason: finish, Usage: schema.Usage{PromptTokens: int64(prompt/4 + 1), CompletionTokens: int64(len(raw)/4 + 1)}}
}

type toolSpec struct {
	Function struct {
		Name       string `json:"name"`
		Parameters struct {
			Properties map[string]struct {
				Type any `json:"type"`
			} `json:"properties"`
			Required []string `json:"required"`
		} `json:"parameters"`
	} `json:"function"`
}

// shellNames lists the names that agents use for their shell tool and its
// argument.
func shellNames() (tools, arguments []string) {
	return []string{"bash", "shell", "run_shell_command", "execute", "Execute", "Bash", "run_command", "terminal", "exec_command", "run_terminal_cmd", "run_terminal_command", "run_commands"},
		[]string{"command", "cmd", "script", "commands"}
}

// shellCall returns a call of the agent's shell tool with a command.
func shellCall(tools []toolSpec, run string) (Tool, error) {
	names, arguments := shellNames()
	for _, name := range names {
		i := slices.IndexFunc(tools, func(t toolSpec) bool { return t.Function.Name == name })
		if i < 0 {
			continue
		}
		params := tools[i].Function.Parameters
		args := map[string]any{}
		for _, required := range params.Required {
			if params.Properties[required].Type == "string" {
				args[required] = "run a command"
			}
		}
		for _, arg := range arguments {
			p, ok := params.Properties[arg]
			if !ok {
				continue
			}
			args[arg] = run
			switch {
			case arg == "commands": // each for a shell
				args[arg] = []string{run}
			case p.Type == "array": // an argv
				args[arg] = []string{"/bin/sh", "-c", run}
			}
			return Tool{Name: name, Args: args}, nil
		}
	}
	have := make([]string, len(tools))
	for i, t := range tools {
		have[i] = t.Function.Name
	}
	return Tool{}, refuse("the agent offers no shell tool that is known here; it has %q", have)
}
