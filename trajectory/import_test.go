package trajectory_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// imported imports files by their names, the first of them of the agent itself.
func imported(t testing.TB, name string, files map[string]string) (*trajectory.Imported, error) {
	t.Helper()
	return trajectory.Import("harbor-01", []string{name}, func(name string) ([]byte, error) {
		if data, ok := files[name]; ok {
			return []byte(data), nil
		}
		return nil, fs.ErrNotExist
	})
}

func linked(t testing.TB, m *trajectory.Imported) *trajectory.Rollout {
	t.Helper()
	r, err := trajectory.Read(bytes.NewReader(m.Transcript), &schema.Result{ID: "harbor-01", Attempt: 1, Committed: m.Committed}, trajectory.Options{Messages: true})
	harness.Must(t, err)
	return r
}

// The steps of a trajectory become calls with their messages, tools, tokens and costs.
func TestATrajectoryIsImported(t *testing.T) {
	m, err := imported(t, "agent/trajectory.json", map[string]string{
		"agent/trajectory.json": `{"schema_version":"ATIF-v9","unknown":{},"agent":{"name":"a","version":"1","model_name":"m","tool_definitions":[{"type":"function"}]},"continued_trajectory_ref":"next.json","steps":[
			{"step_id":1,"source":"system","message":"Be careful."},
			{"step_id":2,"source":"user","message":[{"type":"text","text":"Look."},{"type":"image","source":{"media_type":"image/png","path":"a.png"}},{"type":"audio","source":{"media_type":"audio/wav","path":"data:x"}},{"type":"film"}]},
			{"step_id":3,"timestamp":"2026-11-26T04:00:00Z","source":"agent","message":"","reasoning_content":"first","tool_calls":[{"tool_call_id":"t1","function_name":"bash","arguments":{"command":"ls"}}],
			 "observation":{"results":[{"source_call_id":"t1","content":"a.png"},{"content":null,"subagent_trajectory_ref":[{"trajectory_path":"sub.json"},{"trajectory_id":"in","trajectory_path":"none.json"}]}]},
			 "metrics":{"prompt_tokens":2,"completion_tokens":2,"cached_tokens":1,"cost_usd":0.5,"prompt_token_ids":[1,2],"completion_token_ids":[3,4],"logprobs":[-0.5,-0.25]}},
			{"step_id":4,"source":"agent","llm_call_count":0,"message":"by rule"},
			{"step_id":5,"source":"agent","model_name":"m2","message":"Done.","extra":{"finish_reason":"stop","ms":7},"metrics":{"prompt_token_ids":[1,2,3,4,9],"completion_token_ids":[5],"logprobs":[-1]}},
			"no step", {"source":"judge","message":7}
		],"subagent_trajectories":[{"trajectory_id":"in","extra":{"role":"aux"},"agent":{"model_name":"small"},"steps":[{"source":"user","message":"title?"},{"source":"agent","message":"T"}]}]}`,
		"agent/next.json": `{"agent":{"name":"a"},"steps":[{"source":"agent","is_copied_context":true,"message":"Done."},{"source":"user","message":"More."},{"source":"agent","message":"More done."}],"continued_trajectory_ref":"trajectory.json"}`,
		"agent/sub.json":  `{"steps":[{"source":"agent","message":"sub"}]}`,
	})
	harness.Must(t, err)
	r := linked(t, m)
	var tags []string
	for _, c := range r.Calls {
		tags = append(tags, c.Role)
	}
	if got := strings.Join(tags, " "); got != "agent agent agent subagent aux" {
		t.Fatalf("the calls are %s", got)
	}
	first, second, next := r.Calls[0], r.Calls[1], r.Calls[2]
	if first.Usage.CachedTokens != 1 || *first.Usage.CostUSD != 0.5 || first.At != 1795665600000 || first.Model != "m" || len(first.Messages) != 2 || !strings.Contains(string(first.Message), `"reasoning_content":"first"`) {
		t.Errorf("got %+v", first)
	}
	if text := string(first.Messages[1]); !strings.Contains(text, "a.png") || !strings.Contains(text, "[audio audio/wav]") || !strings.Contains(text, "[film]") {
		t.Errorf("got %s", text)
	}
	if second.Parent != 1 || second.Merge != trajectory.MergeClean || second.Model != "m2" || second.FinishReason != "stop" || second.MS != 7 || len(second.Messages) != 4 {
		t.Errorf("got %+v with %s", second, second.Messages)
	}
	if tool := trajectory.ReadMessage(second.Messages[1]); tool.Role != "tool" || tool.ToolCall != "t1" || tool.Text != "a.png" {
		t.Errorf("got %+v", tool)
	}
	if len(next.Messages) != 2 || r.Calls[4].Model != "small" {
		t.Errorf("got %s, %+v", next.Messages, r.Calls[4])
	}
	rows := slices.Collect(r.Rows())
	if len(rows) != 1 || !slices.Equal(rows[0].InputIDs, []int32{1, 2, 3, 4, 9, 5}) || rows[0].Logprobs[2] != -0.5 {
		t.Errorf("got %+v", rows)
	}
	if len(m.Notes) != 1 || len(m.Committed) != 5 {
		t.Errorf("got %q, %v", m.Notes, m.Committed)
	}
}

// A trajectory that turngate has written is the same after its import.
func TestAnImportedTrajectoryIsTheSame(t *testing.T) {
	first := transcriptOf(t)
	a, err := trajectory.Convert(bytes.NewReader(first), &schema.Result{ID: "harbor-01", Attempt: 1, Agent: "mini"})
	harness.Must(t, err)
	data, err := json.Marshal(a)
	harness.Must(t, err)
	m, err := imported(t, "t", map[string]string{"t": string(data)})
	harness.Must(t, err)
	was, err := trajectory.Read(bytes.NewReader(first), nil, trajectory.Options{Messages: true})
	harness.Must(t, err)
	is := linked(t, m)
	if len(is.Calls) != len(was.Calls) || is.Tokens.Sampled != was.Tokens.Sampled || is.Tokens.Sampled == 0 {
		t.Fatalf("got %d calls with %v, want %d with %v", len(is.Calls), is.Tokens, len(was.Calls), was.Tokens)
	}
	for i, c := range is.Calls {
		w := was.Calls[i]
		if c.Prompt != w.Prompt || c.Completion != w.Completion || c.Parent != w.Parent || c.MS != w.MS || trajectory.ReadMessage(c.Message).Text != trajectory.ReadMessage(w.Message).Text {
			t.Errorf("call %d: got %+v, want %+v", i+1, c, w)
		}
	}
}

func transcriptOf(t testing.TB) []byte {
	t.Helper()
	end := func(n int, text string, prompt, completion []int32) *schema.TranscriptLine {
		return &schema.TranscriptLine{At: 1795373044999 + int64(n)*1000, Call: n, Gen: "g", MS: 262, Reply: &schema.Reply{
			Message: json.RawMessage(text), FinishReason: "stop", PromptIDs: schema.PackTokenIDs(prompt), CompletionIDs: schema.PackTokenIDs(completion), Logprobs: schema.PackLogprobs(make([]float32, len(completion))),
		}}
	}
	return pack(t, request(1, "agent", 0, 0, `{"role":"user","content":"go"}`), end(1, `{"role":"assistant","content":"one"}`, []int32{1}, []int32{2, 3}),
		request(2, "agent", 1, 1, `{"role":"assistant","content":"one"}`, `{"role":"user","content":"on"}`), end(2, `{"role":"assistant","content":"two"}`, []int32{1, 2, 3, 4}, []int32{5}))
}

func TestNoTrajectory(t *testing.T) {
	for name, file := range map[string]string{"no call": `{"steps":[{"source":"user","message":"x"}]}`, "itself": `{"steps":[],"continued_trajectory_ref":"t"}`} {
		if _, err := imported(t, "t", map[string]string{"t": file}); !errors.Is(err, trajectory.ErrNoCalls) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, file := range map[string]string{"no JSON": "{", "no object": "[]", "no steps": "{}"} {
		var broken *trajectory.TranscriptError
		if _, err := imported(t, "t", map[string]string{"t": file}); !errors.As(err, &broken) || !strings.Contains(err.Error(), "transcript: t: ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzImport: no file makes a transcript that cannot be read.
func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"agent":{"model_name":"m"},"steps":[{"source":"user","message":[{"type":"text","text":"x"}]},{"source":"agent","message":"y","tool_calls":[{"tool_call_id":"1","function_name":"f","arguments":{}}],"observation":{"results":[{"source_call_id":"1","content":"z"}]},"metrics":{"prompt_token_ids":[1],"completion_token_ids":[2],"logprobs":[null]}}],"continued_trajectory_ref":"t","subagent_trajectories":[{"steps":[{"source":"agent"}]}]}`))
	f.Add([]byte(`{"steps":[{"source":"agent","message":null,"metrics":{"cost_usd":-1,"prompt_tokens":1e300,"completion_token_ids":[1e9]},"extra":{"ms":1e18,"policy_versions":[{"start":-1}]},"timestamp":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := imported(t, "t", map[string]string{"t": string(data)})
		if err != nil {
			return
		}
		r := linked(t, m)
		for row := range r.Rows() {
			if len(row.InputIDs) != len(row.Logprobs) {
				t.Errorf("got %+v", row)
			}
		}
		for _, c := range r.Calls {
			if c.Role == trajectory.RoleDiscarded {
				t.Errorf("call %d is discarded", c.Number)
			}
		}
	})
}
