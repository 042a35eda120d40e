package schema_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

var update = flag.Bool("update", false, "write the golden vectors anew")

func raw(s string) json.RawMessage { return json.RawMessage(s) }

// samples has every message with its fields set. The golden files are made from
// it; clients in other languages read them.
func samples() map[string]schema.Message {
	out := map[string]schema.Message{}
	for _, some := range []func() map[string]schema.Message{requestSamples, callSamples, resultSamples, eventSamples, verificationSamples, workerSamples} {
		maps.Copy(out, some())
	}
	return out
}

func sampleFault() *schema.Fault {
	return schema.Faultf("agent", schema.CodeTimeout, schema.WhoAgent, "no end within %d ms", 900000)
}

func sampleExit() *schema.Exit {
	return &schema.Exit{Code: 137, Signal: "killed", TimedOut: true, MS: 900000, StdoutBytes: 12, StderrBytes: 3}
}

func sampleRequest() schema.Request {
	return schema.Request{
		V: 1, ID: "alpha-7", Trainer: "alpha", Shard: "0", Group: "g1", Index: 2, Mode: schema.ModeGate,
		Task:        schema.Task{Name: `say "hi" $(touch x)`, Instruction: "-- make hello.txt\nwith 'quotes'\n", Bundle: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		Agent:       schema.AgentChoice{Name: "opencode", Version: "1.18.33", Args: []string{"--x"}, Env: map[string]string{"A": "1", "B": "two words"}, SystemPrompt: "Be brief.", MaxTurns: 5, Network: "none", MCP: []schema.MCPServer{{Name: "rec", Command: []string{"/rec", "--x"}, Env: map[string]string{"A": "1"}}, {Name: "docs", URL: "http://docs:8000/mcp", Transport: schema.TransportHTTP}}, SkillsDir: "/skills", Tools: []schema.ToolSpec{{Name: "search", Description: "Searches.", Parameters: raw(`{"type":"object"}`)}}},
		Sandbox:     schema.SandboxChoice{Backend: "docker", Image: "debian:12", Network: "allowlist", Allow: []string{"*.debian.org", "192.0.2.0/24"}, CPUs: 1.5, MemoryBytes: 1 << 31, Pids: 256, Strict: []string{"memory_bytes"}, User: "1000", Workdir: "/app", Env: map[string]string{"C": "3"}},
		Model:       schema.Model{Name: "policy", Sampling: raw(`{"temperature":0.7}`)},
		Gate:        schema.GateOptions{Stream: "buffer", MaxCalls: 50, MaxTokens: 100000, MaxRepeats: 30, MaxParallel: 8, WaitMS: 1800000, Routes: schema.SortedMap[schema.Route]{"aux": {Reply: "A title"}, "subagent": {Shard: "1"}}},
		Limits:      schema.Limits{ReadyMS: 15000, InstallMS: 240000, SetupMS: 300000, AgentMS: 900000, VerifyMS: 600000},
		Setup:       []schema.Command{{Run: "git init", User: "root", Env: map[string]string{"D": "4"}}},
		Snapshot:    true,
		Healthcheck: &schema.Healthcheck{Run: "test -e /ready", IntervalMS: 5000, TimeoutMS: 30000, StartPeriodMS: 1000, StartIntervalMS: 500, Retries: 3},
		Verify: &schema.Verify{
			Run: "bash /tests/test.sh", RewardKey: "reward", Network: "allowlist", Allow: []string{"pypi.org"}, Separate: &schema.SandboxChoice{Backend: "docker", Image: "debian:12"}, Bundled: true, Processes: schema.ProcessesEnd,
			Collect: []schema.Hook{{Run: "pg_dump > /dump", Service: "db", User: "postgres", TimeoutMS: 60000}},
		},
		Artifacts: []schema.ArtifactRule{{Source: "/workspace/out.txt"}, {Source: "/db", Destination: "state/db", Service: "db", Exclude: []string{"*.log"}}}, MaxAttempts: 3, AttemptFloor: 1, DelayMS: 10, Labels: map[string]string{"source": "golden"},
	}
}

func sampleReply() schema.Reply {
	return schema.Reply{
		V: 1, Message: raw(`{"role":"assistant","content":"Done."}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 12, CompletionTokens: 3},
		PromptIDs: schema.PackTokenIDs([]int32{1, 2, 2147483647}), CompletionIDs: schema.PackTokenIDs([]int32{4, 5}), Logprobs: schema.PackLogprobs([]float32{-0.25, -1.5}),
		Versions: []schema.VersionSpan{{Version: "v12", Start: 0, End: 2}}, Sampling: raw(`{"temperature":0.7}`), Edits: []string{"top_logprobs"},
	}
}

// requestSamples returns requests of every form.
func requestSamples() map[string]schema.Message {
	request := sampleRequest()
	steps := request
	steps.Verify, steps.StepReward = nil, schema.StepRewardFinal
	steps.Steps = []schema.Step{{
		Name: "first", Instruction: "Begin.\n", User: "1000", Env: map[string]string{"E": "5"}, Network: "allowlist", Allow: []string{"example.org"}, AgentMS: 60000, VerifyMS: 30000,
		Healthcheck: &schema.Healthcheck{Run: "true"}, Verify: &schema.Verify{RewardKey: "reward"}, Artifacts: []schema.ArtifactRule{{Source: "out"}}, MinReward: map[string]float64{"reward": 0.5},
	}, {Name: "second", Instruction: "Go on.\n"}}
	build := request
	build.Sandbox.Image, build.Sandbox.Build = "", &schema.Build{Context: "environment/app", Dockerfile: "docker/Dockerfile", Target: "run", Args: map[string]string{"VERSION": "1"}}
	verified := request
	verified.Verify = &schema.Verify{By: schema.VerifyByTrainer, User: "root", RewardKey: "reward"}
	services := request
	services.Sandbox = withServices()
	return map[string]schema.Message{
		"request":          &request,
		"request_services": &services,
		"request_build":    &build,
		"request_steps":    &steps,
		"request_verify":   &verified,
	}
}

// callSamples returns the messages of model and tool calls.
func callSamples() map[string]schema.Message {
	reply := sampleReply()
	call := schema.Call{
		V: 1, Key: "alpha-7/2/3", Tag: schema.TagAgent, Dialect: "chat", Model: "policy",
		Messages: []json.RawMessage{raw(`{"role":"system","content":"Be brief."}`), raw(`{"role":"user","content":[{"type":"text","text":"héllo \u2028"}]}`)},
		Tools:    raw(`[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}]`),
		Params:   map[string]json.RawMessage{"temperature": raw(`0.7`), "max_tokens": raw(`32000`)},
		Stream:   true, RemainingMS: 60000, Digest: bytes.Repeat([]byte{7}, 32),
	}
	delta := call
	delta.Key, delta.Base, delta.Keep, delta.Tools, delta.Messages = "alpha-7/2/4", 3, 2, nil, []json.RawMessage{raw(`{"role":"assistant","content":"ok"}`)}
	return map[string]schema.Message{
		"call":        &call,
		"call_delta":  &delta,
		"reply":       &reply,
		"delta":       &schema.Delta{V: 1, Delta: raw(`{"content":"Do"}`), CompletionIDs: schema.PackTokenIDs([]int32{4}), Logprobs: schema.PackLogprobs([]float32{-0.25})},
		"fault":       &schema.Fault{Stage: "call", Code: schema.CodeTooLarge, Message: "prompt of 300000 tokens, at most 200000", Who: schema.WhoTrainer, Status: 413, AgentMessage: "too long", RetryAfterMS: 1000},
		"tool_call":   &schema.ToolCall{V: 1, Key: "alpha-7/2/3", Name: "search", Arguments: raw(`{"q":"héllo"}`)},
		"tool_result": &schema.ToolResult{V: 1, Text: "found\n", IsError: true},
	}
}

// resultSamples returns results.
func resultSamples() map[string]schema.Message {
	reward := 0.5
	fault := sampleFault()
	exit := sampleExit()
	request := sampleRequest()
	price := 0.004
	result := schema.Result{
		V: 1, ID: "alpha-7", Trainer: "alpha", Group: "g1", Index: 2, Task: "hello", Attempt: 2, Status: schema.StatusDone,
		Reward: &reward, Rewards: map[string]float64{"reward": 0.5, "style": 1}, Metrics: map[string]float64{"tests": 4}, Fault: fault, Exit: exit, Separation: schema.SeparationSameUser,
		Phases:    []schema.Phase{{Name: "setup[0]", Start: 1790000000000, MS: 12, Exit: &schema.Exit{MS: 11}, Output: "ok\n"}},
		Calls:     map[string]schema.CallStats{"agent": {Count: 3, PromptTokens: 30, CompletionTokens: 9}},
		Usage:     &schema.ResultUsage{SandboxSeconds: 120.5, SandboxUSD: &price},
		Committed: []schema.Committed{{Call: 1, Gen: "a1b2", Digest: bytes.Repeat([]byte{9}, 32), Shard: "0", Tag: "agent"}},
		Artifacts: []schema.Artifact{{Name: "agent.log", Size: 12, SHA256: request.Task.Bundle}}, Transcript: "transcript.msgpack.zst", Notes: []string{"sandbox.disk_bytes is watched"},
		Worker: "w1", Agent: "opencode", AgentVersion: "1.18.33", Labels: map[string]string{"source": "golden"},
	}
	stepped := result
	stepped.Steps = []schema.StepResult{
		{Name: "first", Reward: &reward, Rewards: map[string]float64{"reward": 0.5}, Exit: exit, Separation: schema.SeparationOtherUser, Phases: []string{"step/first/agent"}, FirstCall: 1, LastCall: 3},
		{Name: "second", Fault: fault},
	}
	unknown := result
	unknown.Reward, unknown.Status = nil, schema.StatusFailed
	return map[string]schema.Message{
		"result_steps":       &stepped,
		"result":             &result,
		"result_null_reward": &unknown,
	}
}

// eventSamples returns events.
func eventSamples() map[string]schema.Message {
	exit := sampleExit()
	reply := sampleReply()
	return map[string]schema.Message{
		"event_phase": &schema.Event{V: 1, Type: schema.EventPhase, Rollout: "alpha-7", Attempt: 2, Index: 1, At: 1790000000000,
			Phase: &schema.PhaseEvent{Name: "agent", Ended: true, MS: 5, Exit: exit}},
		"event_llm": &schema.Event{V: 1, Type: schema.EventLLM, Rollout: "alpha-7", Attempt: 2, Index: 2, At: 1790000000000,
			LLM: &schema.LLMEvent{Number: 3, Gen: "a1b2", MS: 7, Reply: &reply}},
		"event_wait": &schema.Event{V: 1, Type: schema.EventWait, Rollout: "alpha-7", Attempt: 2, Index: 3, At: 1790000000000,
			Wait: &schema.WaitEvent{For: schema.WaitUpstream, Name: "lab", Call: 3, MS: 2500, Tries: 2, Fault: &schema.Fault{Code: schema.CodeBadAnswer, Message: "logprobs: 1 values", Who: schema.WhoTrainer, Status: 502}}},
		"event_net": &schema.Event{V: 1, Type: schema.EventNet, Rollout: "alpha-7", Attempt: 2, Index: 3, At: 1790000000000,
			Net: &schema.NetEvent{Number: 1, Phase: "agent", Host: "pypi.org", Port: 443, Address: "192.0.2.7", Allowed: true, Ended: true, Sent: 517, Got: 4096, MS: 80}},
		"event_verify": &schema.Event{V: 1, Type: schema.EventVerify, Rollout: "alpha-7", Attempt: 2, Index: 4, At: 1790000000000,
			Verify: &schema.VerifyEvent{Number: 1, Do: schema.DoExec, Command: "pytest -q", MS: 5, Exit: exit}},
		"event_shell": &schema.Event{V: 1, Type: schema.EventShell, Rollout: "alpha-7", Attempt: 2, Index: 5, At: 1790000000000,
			Shell: &schema.ShellEvent{Number: 1, By: "ann@host", Part: "verifier", User: "root", Command: "ps aux", Ended: true, MS: 5, Exit: exit}},
	}
}

// verificationSamples returns the messages of a trainer's verification.
func verificationSamples() map[string]schema.Message {
	reward := 0.5
	fault := sampleFault()
	exit := sampleExit()
	request := sampleRequest()
	return map[string]schema.Message{
		"verification": &schema.Verification{
			V: 1, Key: "alpha-7/2/1", Task: "hello", Bundle: request.Task.Bundle, Step: "first", Instruction: "Begin.\n", Group: "g1", Index: 2, Labels: map[string]string{"source": "golden"},
			Workdir: "/app", Exit: exit, Fault: fault, LimitMS: 600000,
		},
		"verdict":               &schema.Verdict{V: 1, Reward: &reward, Rewards: map[string]float64{"style": 1}, Metrics: map[string]float64{"tests": 4}, Messages: []string{"2 of 4 tests passed"}},
		"verdict_unknown":       &schema.Verdict{V: 1},
		"operation_exec":        &schema.Operation{V: 1, Do: schema.DoExec, Args: []string{"pytest", "-q"}, Env: map[string]string{"A": "1"}, Path: "/tests", User: "root", Data: []byte("in\n"), TimeoutMS: 60000},
		"operation_shell":       &schema.Operation{V: 1, Do: schema.DoExec, Run: "cat *.txt | wc -l"},
		"operation_write":       &schema.Operation{V: 1, Do: schema.DoWrite, Path: "sub/héllo.txt", Data: []byte{0, 255}, Mode: 0o600},
		"operation_result":      &schema.OperationResult{V: 1, Exit: exit, Stdout: []byte("ok\n"), Stderr: []byte{255}, Truncated: true},
		"operation_result_list": &schema.OperationResult{V: 1, Files: []schema.Entry{{Name: "a.txt", Kind: schema.KindFile, Size: 3, Mode: 0o644}, {Name: "d", Kind: schema.KindFolder, Mode: 0o755}}},
	}
}

func sampleProcess() schema.Process {
	return schema.Process{V: 1, Instance: "f00d", Owner: "cafe", Shard: "0", Name: "train.py, process 42 on host h1", Since: 1790000000000}
}

// workerSamples returns the messages of workers and servers.
func workerSamples() map[string]schema.Message {
	fault := sampleFault()
	process := sampleProcess()
	return map[string]schema.Message{
		"state":           &schema.State{V: 1, ID: "alpha-7", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 2, Tries: 1, OwnerSeq: 77, Ack: "$JS.ACK.REQ_alpha.workers-p2.1.77.3.1790000000000000000.0", Worker: "w1", Instance: "i1", Since: 1790000000000, Fault: fault},
		"hint":            &schema.Hint{V: 1, ID: "alpha-7"},
		"control":         &schema.Control{V: 1, Do: schema.ControlGiveBack, ID: "alpha-7", Attempt: 2},
		"presence":        &schema.Presence{V: 1, Worker: "w1", Instance: "i1", Version: "0.1.0", Slots: 4, Full: "its load is 9.0 with 4 CPUs", Shells: true, Offer: schema.Offer{Backends: []string{"docker"}, Agents: []string{"mini"}, CPUs: 2.5}, Running: []schema.ID{"alpha-7"}, Load: &schema.Load{CPUs: 8, Load: 0.5, MemoryBytes: 32 << 30, FreeMemoryBytes: 16 << 30, WorkerBytes: 100 << 20}},
		"fleet":           &schema.Fleet{V: 1, Workers: []schema.Capacity{{Worker: "w-1", Slots: 4, Busy: 1, Full: true, Offer: schema.Offer{Backends: []string{"docker"}, Agents: []string{"mini"}, CPUs: 2.5}}}},
		"opened":          &schema.Opened{V: 1, MaxQueue: 1_000_000, MaxQueueBytes: 1 << 30, MaxBundleBytes: 8 << 30, MaxArtifactBytes: 32 << 30, Weight: 2},
		"opened_no":       &schema.Opened{V: 1, Error: "no room for a stream of this size"},
		"attach":          &schema.Attach{V: 1, Process: sampleProcess(), Replace: "b0b0"},
		"attached":        &schema.Attached{V: 1, Process: sampleProcess(), SilentMS: 3000},
		"process":         &process,
		"machine":         &schema.Machine{V: 1, Machine: "m1", Instance: "1790000000000-a1b2", Epoch: 1790000000000, Version: "0.1.0", Program: "ab12", Protocol: schema.LineProtocol, System: "linux/amd64", Slots: 4, Lines: 1, Missing: map[string]string{schema.CanSandbox: "no user namespaces"}, CPUs: 8, Load: 0.5, MemoryBytes: 32 << 30, FreeMemoryBytes: 16 << 30, FreeDiskBytes: 100 << 30},
		"line_open":       &schema.LineOpen{V: 1, Want: schema.CanSandbox},
		"line_open_shell": &schema.LineOpen{V: 1, Want: schema.CanShell, ID: "alpha-7", Instance: "i1", By: "ann@host"},
		"line_end":        &schema.LineEnd{V: 1, Reason: schema.LineFull, Text: "all slots are taken"},
		"enroll":          &schema.Enroll{V: 1, Machine: "build1", Key: "UAHB2DW3WNLI5ELSTCQ4GAHBNMUJVN2TFTIAZXE7ZLXSCYZQ3BYVBCJY", Host: "h1", System: "linux/amd64", Version: "0.1.0", Proof: []byte{1, 2, 3}},
		"enrolled":        &schema.Enrolled{V: 1, State: schema.EnrollPending, IntervalMS: 5000, LeftMS: 600_000},
		"hold":            &schema.Hold{V: 1, Instance: "f00d", Serial: 3, IDs: []schema.ID{"alpha-7"}},
		"cancel":          &schema.Cancel{V: 1, IDs: []schema.ID{"alpha-7", "alpha-8"}, Reason: "stale", Seqs: []uint64{12, 0}},
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
				harness.Must(t, os.MkdirAll("testdata", 0o755))
				harness.Must(t, os.WriteFile(binPath, encoded, 0o644))
				harness.Must(t, os.WriteFile(jsonPath, append(asJSON, '\n'), 0o644))
			}
			wantBin, err := os.ReadFile(binPath)
			harness.Must(t, err)
			wantJSON, err := os.ReadFile(jsonPath)
			harness.Must(t, err)
			if !bytes.Equal(encoded, wantBin) {
				t.Errorf("encoding differs from %s; run with -update if the wire is meant to change", binPath)
			}
			back := reflect.New(reflect.TypeOf(m).Elem()).Interface().(schema.Message)
			harness.Must(t, schema.Decode(wantBin, back))
			gotJSON, err := json.Marshal(back)
			harness.Must(t, err)
			var compact bytes.Buffer
			harness.Must(t, json.Compact(&compact, wantJSON))
			if !bytes.Equal(gotJSON, compact.Bytes()) {
				t.Errorf("decoded message differs from %s:\n%s\n%s", jsonPath, gotJSON, compact.Bytes())
			}
		})
	}
}
