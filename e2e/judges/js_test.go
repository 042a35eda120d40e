package judges

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// node finds Node 20 or newer, and the libraries beside judge.mjs.
func node(t *testing.T) string {
	t.Helper()
	missing := func(why string) {
		if strings.Contains(os.Getenv("TURNGATE_REQUIRE"), "agents") {
			t.Fatal(why)
		}
		t.Skip("SKIPPED: " + why)
	}
	if _, err := os.Stat("node_modules/openai"); err != nil {
		missing("the libraries are not there; run `make judges`")
	}
	var candidates []string
	if home, err := os.UserCacheDir(); err == nil {
		candidates, _ = filepath.Glob(filepath.Join(home, "turngate/agents/*/*/node/bin/node"))
	}
	if path, err := exec.LookPath("node"); err == nil {
		candidates = append(candidates, path)
	}
	if len(candidates) == 0 {
		missing("no node; `turngate agent install pi` brings one")
	}
	return candidates[0]
}

func TestJavaScriptLibraries(t *testing.T) {
	node := node(t)
	for _, tt := range []struct {
		dialect string
		finish  [2]string
		refused string // class of the error
	}{
		{"chat", [2]string{"tool_calls", "stop"}, "RateLimitError"},
		{"responses", [2]string{"completed", "completed"}, "RateLimitError"},
		{"messages", [2]string{"tool_use", "end_turn"}, "RateLimitError"},
		{"gemini", [2]string{"STOP", "STOP"}, "ApiError"},
	} {
		for _, how := range []string{"whole", "stream", "stream/pass"} {
			t.Run(tt.dialect+"/"+how, func(t *testing.T) {
				how, mode, _ := strings.Cut(how, "/")
				if mode == "" {
					mode = schema.StreamBuffer
				}
				b := newBench(t, mode)
				cmd := exec.CommandContext(t.Context(), node, "judge.mjs", tt.dialect, how)
				cmd.Env = append(os.Environ(), "BASE="+b.url, "KEY="+b.key, "NO_PROXY=127.0.0.1")
				var said bytes.Buffer
				cmd.Stderr = &said
				answer, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %s%s", err, answer, &said)
				}
				var got struct {
					Turns   []turn
					Refused struct {
						Name   string
						Status int
					}
					Count  *int
					Models []string
				}
				if err := json.Unmarshal(answer, &got); err != nil {
					t.Fatalf("%v: %s", err, answer)
				}
				check(t, got.Turns, tt.finish, tt.dialect != "chat")
				b.conversation(t, tt.dialect)
				if got.Refused.Name != tt.refused || got.Refused.Status != 429 {
					t.Errorf("refused as %+v", got.Refused)
				}
				if len(got.Models) != 1 || !strings.HasSuffix(got.Models[0], "policy") {
					t.Errorf("models %q", got.Models)
				}
				if counts := tt.dialect == "messages" || tt.dialect == "gemini"; counts && (got.Count == nil || *got.Count < 1) {
					t.Errorf("tokens %v", got.Count)
				}
			})
		}
	}
}
