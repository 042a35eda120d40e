package replay_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/schema"
)

func call(tools string, messages ...string) *schema.Call {
	c := &schema.Call{Key: "alpha-1/1/1", Tools: json.RawMessage(tools)}
	for _, m := range messages {
		c.Messages = append(c.Messages, json.RawMessage(m))
	}
	return c
}

const bash = `[{"type":"function","function":{"name":"bash","parameters":{"type":"object","properties":{"command":{"type":"string"},"description":{"type":"string"}},"required":["command","description"]}}}]`

func TestStepsFollowTheConversation(t *testing.T) {
	s, err := replay.Parse([]byte("aux: Title\nsteps:\n- run: echo 'a b' > x\n- text: done\n  reasoning: hm\n- fault: {status: 429, message: later}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Answer(t.Context(), call(bash, `{"role":"user","content":"go"}`))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		ToolCalls []struct {
			ID       string
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	if err := json.Unmarshal(r.Message, &m); err != nil || len(m.ToolCalls) != 1 || m.ToolCalls[0].Function.Name != "bash" ||
		m.ToolCalls[0].Function.Arguments != `{"command":"echo 'a b' \u003e x","description":"run a command"}` || r.FinishReason != "tool_calls" {
		t.Fatalf("got %s, %v", r.Message, err)
	}
	assistant := `{"role":"assistant","content":"x"}`
	for range 2 { // the same call again gets the same answer
		r, err = s.Answer(t.Context(), call(bash, assistant))
		if err != nil || string(r.Message) != `{"content":"done","reasoning_content":"hm","role":"assistant"}` {
			t.Fatalf("got %s, %v", r.Message, err)
		}
	}
	var f *schema.Fault
	if _, err := s.Answer(t.Context(), call(bash, assistant, assistant)); !errors.As(err, &f) || f.Status != 429 {
		t.Fatalf("got %v", err)
	}
	if _, err := s.Answer(t.Context(), call(bash, assistant, assistant, assistant)); !errors.As(err, &f) || f.Status != 400 || !strings.Contains(f.Message, "run out") {
		t.Fatalf("got %v", err)
	}
	if r, err := s.Answer(t.Context(), call("", assistant)); err != nil || !strings.Contains(string(r.Message), "Title") {
		t.Fatalf("got %v, %v", r, err)
	}
}

func TestRunFitsTheAgentsOwnShellTool(t *testing.T) {
	s, err := replay.Parse([]byte("steps: [{run: ls}]"))
	if err != nil {
		t.Fatal(err)
	}
	for tools, want := range map[string]string{
		`[{"function":{"name":"shell","parameters":{"properties":{"command":{"type":"array"}}}}}]`:              `{"command":["/bin/sh","-c","ls"]}`,
		`[{"function":{"name":"read"}},{"function":{"name":"x"}}]`:                                              "",
		`[{"function":{"name":"exec_command","parameters":{"properties":{"cmd":{"type":"string"}}}}}]`:          `{"cmd":"ls"}`,
		`[{"function":{"name":"run_shell_command","parameters":{"properties":{"command":{"type":"string"}}}}}]`: `{"command":"ls"}`,
	} {
		r, err := s.Answer(t.Context(), call(tools, `{"role":"user"}`))
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "shell") {
				t.Errorf("%s: got %v", tools, err)
			}
			continue
		}
		quoted, _ := json.Marshal(want)
		if err != nil || !strings.Contains(string(r.Message), string(quoted)) {
			t.Errorf("%s: got %s, %v", tools, r.Message, err)
		}
	}
}

func TestBadScriptsAreRefused(t *testing.T) {
	for _, text := range []string{"", "steps: []", "steps: [{}]", "steps: [{txt: a}]", "steps: [{text: a, delay_ms: -1}]", "stepz: []", "- a"} {
		if _, err := replay.Parse([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("steps: [{run: ls}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := replay.Parse(data); err == nil {
			_, _ = s.Answer(t.Context(), call(bash, `{"role":"user"}`))
		}
	})
}
