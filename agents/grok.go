package agents

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// grok is xAI's Grok Build, a static executable, compressed in its package. Its
// model calls for purposes other than the task are off.
func grok() Spec {
	const version = "1.0.41"
	return Spec{
		Name: "grok", Version: version, Dialect: "chat", Needs: []string{"bash"}, MaxTurns: true,
		Sessions: "grok/sessions", Skills: "grok/skills",
		Packages: []Package{{Name: "@xai-official/grok-linux-{arch}", Version: version, Dir: "grok", Brotli: "bin/grok.br"}},
		Files: func(l Launch) (map[string]File, error) {
			return map[string]File{l.Dir + "/grok/config.toml": {[]byte(grokConfig(l)), 0o600}, l.Dir + "/prompt": {[]byte(l.Instruction), 0o600}}, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"GROK_HOME": l.Dir + "/grok", "XAI_API_KEY": l.Key, "GROK_DISABLE_AUTOUPDATER": "1", "GROK_TELEMETRY_ENABLED": "0",
				"GROK_TURN_SUMMARY": "0", "GROK_TITLE_REFRESH": "0", "GROK_SESSION_RECAP": "0", "GROK_FEEDBACK_ENABLED": "0",
			})
			args := []string{l.Installed + "/grok/bin/grok", "--output-format", "streaming-json", "--always-approve", "-m", "policy", "--prompt-file", l.Dir + "/prompt"} // /dev/stdin is a pipe of root's, which no other user may open
			if l.MaxTurns > 0 {
				args = append(args, "--max-turns", strconv.Itoa(l.MaxTurns))
			}
			return Command{Args: append(args, l.Args...), Env: env}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseGrok,
	}
}

func grokConfig(l Launch) string {
	return strings.Join([]string{
		"[cli]", "auto_update = false",
		"[features]", "telemetry = false",
		"[models]", `default = "policy"`, "inference_idle_timeout_secs = 7200", "rate_limit_retry_threshold = 8",
		"[model.policy]", "model = " + tomlString(l.Model), "base_url = " + tomlString(l.BaseURL+"/v1"), `name = "policy"`, "api_key = " + tomlString(l.Key),
		`api_backend = "chat_completions"`, "context_window = 200000",
	}, "\n") + "\n"
}

func parseGrok(line []byte) *Event {
	var e struct {
		Type, Data, Message, Status, ToolCallID, ToolName string
		RawInput                                          json.RawMessage
		RawOutput                                         struct {
			ForPrompt string `json:"output_for_prompt"`
		}
		Usage counted
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "text":
		return &Event{Kind: "text", Text: e.Data}
	case "tool_call":
		return &Event{Kind: "tool_call", Tool: e.ToolName, ID: e.ToolCallID, Input: e.RawInput}
	case "tool_call_update":
		if e.Status == "completed" || e.Status == "failed" {
			return &Event{Kind: "tool_result", ID: e.ToolCallID, Output: e.RawOutput.ForPrompt}
		}
	case "usage":
		return e.Usage.event()
	case "error":
		return &Event{Kind: "error", Text: e.Message}
	}
	return &Event{Kind: "other", Text: e.Type}
}
