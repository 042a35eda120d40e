package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// TestEventsOnATerminal shows an event of each kind with hostile text in each of
// its fields.
func TestEventsOnATerminal(t *testing.T) {
	const text = "\x1b]52;c;cHduZWQ=\a\x1b[2J\u009b31m\u202e\u2028\r06:22 beta-X/1 result done, reward 1\n06:22 beta-X/1 result done"
	fault := &schema.Fault{Stage: text, Code: text, Who: text, Message: text, AgentMessage: text}
	raw := json.RawMessage(`{"content":"x` + "\x7f\u009b\u202e" + `"}`)
	step := func(kind string) json.RawMessage {
		data, err := json.Marshal(map[string]any{"kind": kind, "tool": text, "text": text, "input": raw, "output": text})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, e := range map[string]schema.Event{
		"a phase":         {Phase: &schema.PhaseEvent{Name: text}},
		"a failed phase":  {Phase: &schema.PhaseEvent{Name: text, Fault: fault}},
		"an ended phase":  {Phase: &schema.PhaseEvent{Name: text, Ended: true, Exit: &schema.Exit{}}},
		"a call":          {LLM: &schema.LLMEvent{Note: text, Call: &schema.Call{Messages: []json.RawMessage{raw}}}},
		"a reply":         {LLM: &schema.LLMEvent{Note: text, Reply: &schema.Reply{Message: raw, FinishReason: text}}},
		"a refused call":  {LLM: &schema.LLMEvent{Fault: fault}},
		"a note":          {LLM: &schema.LLMEvent{Note: text}},
		"a log":           {Log: &schema.LogEvent{Source: text, Stream: text, Text: text}},
		"a shell":         {Shell: &schema.ShellEvent{By: text, Command: text, Ended: true, Fault: text}},
		"a verification":  {Verify: &schema.VerifyEvent{Do: text, Path: text, Command: text, Fault: fault}},
		"a result":        {Result: &schema.Result{Status: schema.Status(text), Fault: fault}},
		"a tool's call":   {Step: step("tool_call")},
		"a tool's result": {Step: step("tool_result")},
		"another step":    {Step: step(text)},
	} {
		var out bytes.Buffer
		e.Rollout = "beta-X"
		showEvent(plain.NewWriter(&out), &e)
		got := out.String()
		if strings.IndexFunc(got, func(r rune) bool {
			return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x2028)
		}) >= 0 {
			t.Errorf("%s: %q", name, got)
		}
		for i, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
			if !strings.Contains(line, "beta-X/0 ") && !strings.HasPrefix(line, "    ") || line == "" {
				t.Errorf("%s: line %d is forged: %q", name, i, line)
			}
		}
	}
}
