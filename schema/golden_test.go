package schema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/turngate/turngate/schema"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

func raw(s string) json.RawMessage { return json.RawMessage(s) }

// samples has every message with its fields set; clients in other languages
// read the files that are made from it.
func samples() map[string]schema.Message {
	reward := 0.5
	fault := schema.Faultf("agent", schema.CodeTimeout, schema.WhoAgent, "no end within %d ms", 900000)
	exit := &schema.Exit{Code: 137, Signal: "killed", TimedOut: true, MS: 900000, StdoutBytes: 12, StderrBytes: 3}
	request := schema.Request{
		V: 1, ID: "alpha-7", Trainer: "alpha", Shard: "0", Group: "g1", Index: 2, Mode: schema.ModeGate,
		Task:      schema.Task{Name: `say "hi" $(touch x)`, Instruction: "-- make hello.txt\nwith 'quotes'\n", Bundle: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		Agent:     schema.AgentChoice{Name: "opencode", Version: "1.18.33", Args: []string{"--x"}, Env: map[string]string{"A": "1", "B": "two words"}, SystemPrompt: "Be brief.", MaxTurns: 5, MCP: []schema.MCPServer{{Name: "rec", Command: []string{"/rec", "--x"}, Env: map[string]string{"A": "1"}}}, Tools: []schema.ToolSpec{{Name: "search", Description: "Searches.", Parameters: raw(`{"type":"object"}`)}}},
		Sandbox:   schema.SandboxChoice{Backend: "docker", Image: "debian:12", Network: "none", CPUs: 1.5, MemoryBytes: 1 << 31, Pids: 256, User: "1000", Workdir: "/app", Env: map[string]string{"C": "3"}},
		Model:     schema.Model{Name: "policy", Sampling: raw(`{"temperature":0.7}`)},
		Gate:      schema.GateOptions{Stream: "buffer", MaxCalls: 50, MaxTokens: 100000, MaxParallel: 8, WaitMS: 1800000, Routes: schema.SortedMap[schema.Route]{"aux": {Reply: "A title"}, "subagent": {Shard: "1"}}},
		Limits:    schema.Limits{ReadyMS: 15000, InstallMS: 240000, SetupMS: 300000, AgentMS: 900000, VerifyMS: 600000},
		Setup:     []schema.Command{{Run: "git init", User: "root", Env: map[string]string{"D": "4"}}},
		Verify:    &schema.Verify{Run: "bash /tests/test.sh", RewardKey: "reward"},
		Artifacts: []string{"/workspace/out.txt"}, MaxAttempts: 3, AttemptFloor: 1, DelayMS: 10, Labels: map[string]string{"source": "golden"},
	}
	call := schema.Call{
		V: 1, Key: "alpha-7/2/3", Tag: schema.TagAgent, Dialect: "chat", Model: "policy",
		Messages: []json.RawMessage{raw(`{"role":"system","content":"Be brief."}`), raw(`{"role":"user","content":[{"type":"text","text":"héllo \u2028"}]}`)},
		Tools:    raw(`[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}]`),
		Params:   map[string]json.RawMessage{"temperature": raw(`0.7`), "max_tokens": raw(`32000`)},
		Stream:   true, RemainingMS: 60000, Digest: bytes.Repeat([]byte{7}, 32),
	}
	delta := call
	delta.Key, delta.Base, delta.Keep, delta.Tools, delta.Messages = "alpha-7/2/4", 3, 2, nil, []json.RawMessage{raw(`{"role":"assistant","content":"ok"}`)}
	reply := schema.Reply{
		V: 1, Message: raw(`{"role":"assistant","content":"Done."}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 12, CompletionTokens: 3},
		PromptIDs: schema.PackTokenIDs([]int32{1, 2, 2147483647}), CompletionIDs: schema.PackTokenIDs([]int32{4, 5}), Logprobs: schema.PackLogprobs([]float32{-0.25, -1.5}),
		Versions: []schema.VersionSpan{{Version: "v12", Start: 0, End: 2}}, Sampling: raw(`{"temperature":0.7}`), Edits: []string{"top_logprobs"},
	}
	result := schema.Result{
		V: 1, ID: "alpha-7", Trainer: "alpha", Group: "g1", Index: 2, Task: "hello", Attempt: 2, Status: schema.StatusDone,
		Reward: &reward, Rewards: map[string]float64{"reward": 0.5, "style": 1}, Metrics: map[string]float64{"tests": 4}, Fault: fault, Exit: exit,
		Phases:    []schema.Phase{{Name: "setup[0]", Start: 1790000000000, MS: 12, Exit: &schema.Exit{MS: 11}, Output: "ok\n"}},
		Calls:     map[string]schema.CallStats{"agent": {Count: 3, PromptTokens: 30, CompletionTokens: 9}},
		Committed: []schema.Committed{{Call: 1, Gen: "a1b2", Digest: bytes.Repeat([]byte{9}, 32), Shard: "0", Tag: "agent"}},
		Artifacts: []schema.Artifact{{Name: "agent.log", Size: 12, SHA256: request.Task.Bundle}}, Transcript: "transcript.msgpack.zst",
		Worker: "w1", Agent: "opencode", AgentVersion: "1.18.33", Labels: map[string]string{"source": "golden"},
	}
	unknown := result
	unknown.Reward, unknown.Status = nil, schema.StatusFailed
	return map[string]schema.Message{
		"request": &request, "call": &call, "call_delta": &delta, "reply": &reply, "result": &result, "result_null_reward": &unknown,
		"delta": &schema.Delta{V: 1, Delta: raw(`{"content":"Do"}`), CompletionIDs: schema.PackTokenIDs([]int32{4}), Logprobs: schema.PackLogprobs([]float32{-0.25})},
		"fault": &schema.Fault{Stage: "call", Code: schema.CodeTooLarge, Message: "prompt of 300000 tokens, at most 200000", Who: schema.WhoTrainer, Status: 413, AgentMessage: "too long", RetryAfterMS: 1000},
		"event_phase": &schema.Event{V: 1, Type: schema.EventPhase, Rollout: "alpha-7", Attempt: 2, Index: 1, At: 1790000000000,
			Phase: &schema.PhaseEvent{Name: "agent", Ended: true, MS: 5, Exit: exit}},
		"event_llm": &schema.Event{V: 1, Type: schema.EventLLM, Rollout: "alpha-7", Attempt: 2, Index: 2, At: 1790000000000,
			LLM: &schema.LLMEvent{Number: 3, Gen: "a1b2", MS: 7, Reply: &reply}},
		"state":       &schema.State{V: 1, ID: "alpha-7", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 2, Tries: 1, OwnerSeq: 77, Ack: "$JS.ACK.ROLLOUT_REQ.workers-p2.1.77.3.1790000000000000000.0", Worker: "w1", Instance: "i1", Since: 1790000000000, Fault: fault},
		"tool_call":   &schema.ToolCall{V: 1, Key: "alpha-7/2/3", Name: "search", Arguments: raw(`{"q":"héllo"}`)},
		"tool_result": &schema.ToolResult{V: 1, Text: "found\n", IsError: true},
		"hint":        &schema.Hint{V: 1, ID: "alpha-7"},
		"control":     &schema.Control{V: 1, Do: schema.ControlTake, ID: "alpha-7", Subject: "rollout.requests.p2.alpha", Ack: "$JS.ACK.ROLLOUT_REQ.workers-p2.1.77.3.1790000000000000000.0", Request: []byte{0x80}},
		"presence":    &schema.Presence{V: 1, Worker: "w1", Instance: "i1", Version: "0.1.0", Slots: 4, Offer: schema.Offer{Backends: []string{"docker"}, Agents: []string{"mini"}, CPUs: 2.5}, Running: []schema.ID{"alpha-7"}},
		"hold":        &schema.Hold{V: 1, Instance: "f00d", Serial: 3, IDs: []schema.ID{"alpha-7"}},
		"cancel":      &schema.Cancel{V: 1, IDs: []schema.ID{"alpha-7", "alpha-8"}, Reason: "stale"},
	}
}

func TestGoldenVectors(t *testing.T) {
	for name, m := range samples() {
		t.Run(name, func(t *testing.T) {
			encoded, err := schema.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			asJSON, err := json.MarshalIndent(m, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			binPath, jsonPath := filepath.Join("testdata", name+".msgpack"), filepath.Join("testdata", name+".json")
			if *update {
				must(t, os.MkdirAll("testdata", 0o755))
				must(t, os.WriteFile(binPath, encoded, 0o644))
				must(t, os.WriteFile(jsonPath, append(asJSON, '\n'), 0o644))
			}
			wantBin, err := os.ReadFile(binPath)
			must(t, err)
			wantJSON, err := os.ReadFile(jsonPath)
			must(t, err)
			if !bytes.Equal(encoded, wantBin) {
				t.Errorf("encoding differs from %s; run with -update if the wire is meant to change", binPath)
			}
			back := reflect.New(reflect.TypeOf(m).Elem()).Interface().(schema.Message)
			must(t, schema.Decode(wantBin, back))
			gotJSON, err := json.Marshal(back)
			must(t, err)
			var compact bytes.Buffer
			must(t, json.Compact(&compact, wantJSON))
			if !bytes.Equal(gotJSON, compact.Bytes()) {
				t.Errorf("decoded message differs from %s:\n%s\n%s", jsonPath, gotJSON, compact.Bytes())
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
