package agents_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/agenttest"
	"github.com/turngate/turngate/schema"
)

func TestEveryAgent(t *testing.T) {
	all := agents.All()
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.Name] {
			t.Errorf("%s is there twice", s.Name)
		}
		seen[s.Name] = true
		t.Run(s.Name, func(t *testing.T) { agenttest.Run(t, s) })
	}
	if len(all) == 0 {
		t.Fatal("there are no agents")
	}
	if _, err := agents.Find(all, "nobody"); err == nil || !strings.Contains(err.Error(), "opencode") {
		t.Errorf("an unknown agent: %v", err)
	}
}

// The lines are in the agents' own formats.
func TestEventsAreRead(t *testing.T) {
	for _, tt := range []struct{ agent, line, kind, text, tool, output string }{
		{"opencode", `{"type":"text","part":{"type":"text","text":"Done."}}`, "text", "Done.", "", ""},
		{"opencode", `{"type":"tool_use","part":{"tool":"bash","callID":"c1","state":{"status":"completed","input":{"command":"ls"},"output":"x"}}}`, "tool_result", "", "bash", "x"},
		{"opencode", `{"type":"error","error":{"name":"APIError","data":{"message":"no","statusCode":401}}}`, "error", "no", "", ""},
		{"opencode", `{"type":"step_finish","part":{"tokens":{"input":3,"output":4}}}`, "usage", "", "", ""},
		{"pi", `{"type":"message_end","message":{"role":"assistant","content":[{"type":"text","text":"Hi"}],"usage":{"input":1,"output":2},"stopReason":"stop"}}`, "text", "Hi", "", ""},
		{"pi", `{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"401"}}`, "error", "401", "", ""},
		{"pi", `{"type":"tool_execution_start","toolCallId":"c","toolName":"bash","args":{"command":"ls"}}`, "tool_call", "", "bash", ""},
		{"pi", `{"type":"auto_retry_end","success":false,"attempt":3,"finalError":"gone"}`, "error", "gone", "", ""},
		{"codex", `{"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"Done."}}`, "text", "Done.", "", ""},
		{"codex", `{"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc ls","status":"in_progress"}}`, "tool_call", "", "exec_command", ""},
		{"codex", `{"type":"item.completed","item":{"type":"command_execution","aggregated_output":"x","exit_code":0,"status":"completed"}}`, "tool_result", "", "exec_command", "x"},
		{"codex", `{"type":"turn.failed","error":{"message":"gone"}}`, "error", "gone", "", ""},
		{"claude-code", `{"type":"assistant","message":{"content":[{"type":"text","text":"Hi"}]}}`, "text", "Hi", "", ""},
		{"claude-code", `{"type":"assistant","message":{"content":[{"type":"tool_use","id":"c","name":"Bash","input":{"command":"ls"}}]}}`, "tool_call", "", "Bash", ""},
		{"claude-code", `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}}`, "tool_result", "", "", "x"},
		{"claude-code", `{"type":"result","subtype":"success","is_error":true,"result":"API Error: 401"}`, "error", "API Error: 401", "", ""},
		{"gemini-cli", `{"type":"message","role":"assistant","content":"Hi","delta":true}`, "text", "Hi", "", ""},
		{"gemini-cli", `{"type":"tool_use","tool_name":"run_shell_command","tool_id":"1","parameters":{}}`, "tool_call", "", "run_shell_command", ""},
		{"gemini-cli", `{"type":"tool_result","tool_id":"1","status":"success","output":"x"}`, "tool_result", "", "", "x"},
		{"gemini-cli", `{"type":"result","status":"error","error":{"type":"unknown","message":"gone"}}`, "error", "gone", "", ""},
		{"qwen-code", `{"type":"result","subtype":"error_during_execution","is_error":true,"error":{"message":"gone"}}`, "error", `{"message":"gone"}`, "", ""},
		{"copilot", `{"type":"assistant.message","data":{"content":"Hi","toolRequests":[]}}`, "text", "Hi", "", ""},
		{"copilot", `{"type":"tool.execution_start","data":{"toolCallId":"c","toolName":"bash","arguments":{"command":"ls"}}}`, "tool_call", "", "bash", ""},
		{"copilot", `{"type":"tool.execution_complete","data":{"toolCallId":"c","success":true,"result":{"content":"x"}}}`, "tool_result", "", "", "x"},
		{"copilot", `{"type":"session.error","data":{"message":"gone"}}`, "error", "gone", "", ""},
		{"droid", `{"type":"message","role":"assistant","text":"Hi"}`, "text", "Hi", "", ""},
		{"droid", `{"type":"tool_call","id":"c","toolName":"Execute","parameters":{"command":"ls"}}`, "tool_call", "", "Execute", ""},
		{"droid", `{"type":"tool_result","id":"c","isError":false,"value":"x"}`, "tool_result", "", "", "x"},
		{"droid", `{"type":"completion","usage":{"input_tokens":3,"output_tokens":4}}`, "usage", "", "", ""},
		{"cline", `{"type":"agent_event","event":{"type":"content_end","contentType":"text","text":"Hi"}}`, "text", "Hi", "", ""},
		{"cline", `{"type":"agent_event","event":{"type":"content_start","contentType":"tool","toolName":"run_commands","toolCallId":"c","input":{"commands":["ls"]}}}`, "tool_call", "", "run_commands", ""},
		{"cline", `{"type":"agent_event","event":{"type":"content_end","contentType":"tool","toolName":"run_commands","output":"x"}}`, "tool_result", "", "run_commands", "x"},
		{"cline", `{"type":"error","message":"gone"}`, "error", "gone", "", ""},
		{"kimi", `{"role":"assistant","content":"Hi"}`, "text", "Hi", "", ""},
		{"kimi", `{"role":"assistant","content":"Look. ","tool_calls":[{"id":"c","function":{"name":"Bash","arguments":"{}"}}]}`, "tool_call", "Look. ", "Bash", ""},
		{"kimi", `{"role":"tool","tool_call_id":"c","content":"x"}`, "tool_result", "", "", "x"},
		{"continue", `{"response":"Hi","status":"success"}`, "text", "Hi", "", ""},
		{"continue", `{"status":"error","message":"gone"}`, "error", "gone", "", ""},
		{"grok-cli", `{"role":"assistant","content":"Hi"}`, "text", "Hi", "", ""},
		{"grok", `{"type":"text","data":"Hi"}`, "text", "Hi", "", ""},
		{"grok", `{"type":"tool_call","toolCallId":"c","toolName":"run_terminal_command","rawInput":{"command":"ls"}}`, "tool_call", "", "run_terminal_command", ""},
		{"grok", `{"type":"tool_call_update","toolCallId":"c","status":"completed","rawOutput":{"output_for_prompt":"x"}}`, "tool_result", "", "", "x"},
		{"kilo", `{"type":"text","part":{"type":"text","text":"Done."}}`, "text", "Done.", "", ""},
		{"mini", `{"kind":"tool_result","tool":"bash","output":"x"}`, "tool_result", "", "bash", "x"},
	} {
		s, err := agents.Find(agents.All(), tt.agent)
		if err != nil {
			t.Fatal(err)
		}
		e := s.ParseEvent([]byte(tt.line))
		if e == nil || e.Kind != tt.kind || e.Text != tt.text || e.Tool != tt.tool || e.Output != tt.output {
			t.Errorf("%s: %s: got %+v", tt.agent, tt.line, e)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"type":"message_end","message":{"content":[{"type":"text"}]}}`))
	f.Fuzz(func(_ *testing.T, line []byte) {
		for _, s := range agents.All() {
			if s.ParseEvent != nil {
				_ = s.ParseEvent(line)
			}
		}
	})
}

// fakeNPM puts an npm on the PATH that packs one archive. It writes its arguments
// to the file "asked".
func fakeNPM(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range headers {
		h.Typeflag, h.Size = tar.TypeReg, 1
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\nwhile [ \"$1\" != --pack-destination ]; do shift; done\ncp " + dir + "/archive \"$2/a.tgz\"\n"
	if err := errors.Join(os.WriteFile(dir+"/archive", b.Bytes(), 0o600), os.WriteFile(dir+"/npm", []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func TestInstallIsPinnedAndOnce(t *testing.T) {
	dir := fakeNPM(t, tar.Header{Name: "package/bin/opencode", Mode: 0o755}, tar.Header{Name: "package/package.json", Mode: 0o600})
	s, err := agents.Find(agents.All(), "opencode")
	if err != nil {
		t.Fatal(err)
	}
	cache := agents.Cache{Dir: t.TempDir()}
	for range 2 {
		var said bytes.Buffer
		if err := cache.Install(t.Context(), s, &said); err != nil {
			t.Fatal(err)
		}
	}
	asked, err := os.ReadFile(dir + "/asked")
	if err != nil || strings.Count(string(asked), "\n") != len(s.Packages) || !strings.Contains(string(asked), "@"+s.Version) || !strings.Contains(string(asked), "--ignore-scripts") {
		t.Fatalf("npm was asked %q, %v", asked, err)
	}
	for name, mode := range map[string]os.FileMode{"opencode/bin/opencode": 0o755, "opencode/package.json": 0o644} {
		if info, err := os.Stat(filepath.Join(cache.Path(s), name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestAPackageThatIsMissingIsInstalled adds a package to an agent that is
// installed.
func TestAPackageThatIsMissingIsInstalled(t *testing.T) {
	fakeNPM(t, tar.Header{Name: "package/bin/rg", Mode: 0o755})
	s := agents.Spec{Name: "toy", Version: "1", Packages: []agents.Package{{Name: "a", Version: "1", Dir: "a"}}}
	cache := agents.Cache{Dir: t.TempDir()}
	if err := cache.Install(t.Context(), s, io.Discard); err != nil {
		t.Fatal(err)
	}
	s.Packages = append(s.Packages, agents.Package{Name: "b", Version: "1", Dir: "b"})
	if cache.Installed(s) {
		t.Error("an agent counts as installed that lacks a package")
	}
	if err := cache.Install(t.Context(), s, io.Discard); err != nil || !cache.Installed(s) {
		t.Errorf("installed again: %v, %v", err, cache.Installed(s))
	}
}

func TestAnArchiveCannotLeaveTheCache(t *testing.T) {
	fakeNPM(t, tar.Header{Name: "package/../../../../outside", Mode: 0o644})
	s, err := agents.Find(agents.All(), "opencode")
	if err != nil {
		t.Fatal(err)
	}
	cache := agents.Cache{Dir: filepath.Join(t.TempDir(), "a", "b", "c")}
	if err := cache.Install(t.Context(), s, &bytes.Buffer{}); err == nil || cache.Installed(s) {
		t.Fatalf("it was installed: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(cache.Dir, "opencode", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestCallsBesideTheWorkAreDistinguished: a call for a title, or a call of a
// sub-agent, must not be tagged as the agent's turn, on which a trainer trains.
func TestCallsBesideTheWorkAreDistinguished(t *testing.T) {
	turn := &schema.Call{Tools: json.RawMessage(`[{}]`)}
	title := &schema.Call{}
	for _, tt := range []struct {
		agent, header, value string
		call                 *schema.Call
		want                 string
	}{
		{"opencode", "", "", turn, schema.TagAgent}, {"opencode", "", "", title, schema.TagAux}, {"opencode", "x-parent-session-id", "ses_1", turn, schema.TagSubagent},
		{"codex", "", "", turn, schema.TagAgent}, {"codex", "x-openai-subagent", "collab_spawn", turn, schema.TagSubagent}, {"codex", "x-codex-parent-thread-id", "t1", turn, schema.TagSubagent},
		{"claude-code", "", "", turn, schema.TagAgent}, {"claude-code", "", "", title, schema.TagAux}, {"claude-code", "x-claude-code-agent-id", "a1", turn, schema.TagSubagent},
		{"gemini-cli", "", "", turn, schema.TagAgent}, {"gemini-cli", "", "", title, schema.TagAux},
		{"qwen-code", "", "", turn, schema.TagAgent}, {"qwen-code", "", "", title, schema.TagAux},
	} {
		s, err := agents.Find(agents.All(), tt.agent)
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		if tt.header != "" {
			h.Set(tt.header, tt.value)
		}
		if got := s.Tag(h, tt.call); got != tt.want {
			t.Errorf("%s with %s: %s, want %s", tt.agent, tt.header, got, tt.want)
		}
	}
}
