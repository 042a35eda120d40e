package agents

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// codex is OpenAI's Codex CLI, a static executable that speaks only the Responses
// API. Its own sandbox and prompts are off because turngate's sandbox isolates
// it. Codex changes its tools for model names that it knows, so the policy should
// have another name.
func codex() Spec {
	const version = "0.169.0"
	return Spec{
		Name: "codex", Version: version, Dialect: "responses", SystemPrompt: true, MCP: true,
		Sessions: "codex/sessions", Skills: "codex/skills", MCPURLs: []string{schema.TransportHTTP},
		Packages: []Package{{Name: "@openai/codex", Version: version + "-linux-{arch}", Dir: "codex"}},
		Files: func(l Launch) (map[string]File, error) {
			files := map[string]File{l.Dir + "/codex/config.toml": {[]byte(codexConfig(l)), 0o600}}
			addSystemPrompt(files, l.Dir+"/codex/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"CODEX_HOME": l.Dir + "/codex", "TURNGATE_KEY": l.Key})
			args := append([]string{
				l.Installed + "/codex/vendor/" + muslTriple() + "/bin/codex", "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
			}, l.Args...)
			return Command{Args: append(args, "-"), Env: env, Stdin: l.Instruction}
		},
		Tag: func(h http.Header, c *schema.Call) string {
			if h.Get("X-Openai-Subagent") != "" || h.Get("X-Codex-Parent-Thread-Id") != "" {
				return schema.TagSubagent
			}
			return withoutTools(c)
		},
		ParseEvent: parseCodex,
	}
}

func muslTriple() string {
	if npmArch() == "x64" {
		return "x86_64-unknown-linux-musl"
	}
	return "aarch64-unknown-linux-musl"
}

func codexConfig(l Launch) string {
	lines := []string{
		"model = " + tomlString(l.Model), `model_provider = "turngate"`, "model_context_window = 200000", `approval_policy = "never"`,
		`sandbox_mode = "danger-full-access"`, "check_for_update_on_startup = false", `web_search = "disabled"`,
	}
	if l.SystemPrompt != "" {
		lines = append(lines, "model_instructions_file = "+tomlString(l.Dir+"/codex/system.md"))
	}
	lines = append(lines,
		"[analytics]", "enabled = false",
		"[features]", "plugins = false", "goals = false", "unbounded_connection_retries = false",
		"[model_providers.turngate]", `name = "turngate"`, "base_url = "+tomlString(l.BaseURL+"/v1"), `env_key = "TURNGATE_KEY"`, `wire_api = "responses"`,
		"stream_idle_timeout_ms = 7200000",
	)
	for _, m := range l.MCP {
		if m.URL != "" {
			lines = append(lines, "[mcp_servers."+m.Name+"]", "url = "+tomlString(m.URL))
			continue
		}
		lines = append(lines, "[mcp_servers."+m.Name+"]", "command = "+tomlString(m.Command[0]), "args = "+string(quote(append([]string{}, m.Command[1:]...))))
		if len(m.Env) > 0 {
			lines = append(lines, "[mcp_servers."+m.Name+".env]")
		}
		for _, name := range slices.Sorted(maps.Keys(m.Env)) {
			lines = append(lines, name+" = "+tomlString(m.Env[name]))
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// tomlString quotes a string for TOML. TOML's basic strings have the same escapes
// as Go's JSON.
func tomlString(s string) string { return string(quote(s)) }

func parseCodex(line []byte) *Event {
	var e struct {
		Type    string
		Message string
		Error   struct{ Message string }
		Usage   counted
		Item    struct {
			ID, Type, Text, Command, Message, Tool, Server string
			Output                                         string `json:"aggregated_output"`
			Arguments                                      json.RawMessage
			Result                                         json.RawMessage
		}
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "item.started":
		switch e.Item.Type {
		case "command_execution":
			return &Event{Kind: "tool_call", Tool: "exec_command", ID: e.Item.ID, Input: quote(map[string]string{"cmd": e.Item.Command})}
		case "mcp_tool_call":
			return &Event{Kind: "tool_call", Tool: e.Item.Server + "." + e.Item.Tool, ID: e.Item.ID, Input: e.Item.Arguments}
		}
	case "item.completed":
		switch e.Item.Type {
		case "agent_message", "reasoning":
			return &Event{Kind: "text", Text: e.Item.Text}
		case "command_execution":
			return &Event{Kind: "tool_result", Tool: "exec_command", ID: e.Item.ID, Output: e.Item.Output}
		case "mcp_tool_call":
			return &Event{Kind: "tool_result", Tool: e.Item.Server + "." + e.Item.Tool, ID: e.Item.ID, Output: string(e.Item.Result)}
		case "error": // a warning, for example about an unknown model
			return &Event{Kind: "other", Text: e.Item.Message}
		}
	case "turn.completed":
		return e.Usage.event()
	case "turn.failed":
		return &Event{Kind: "error", Text: e.Error.Message}
	}
	return &Event{Kind: "other", Text: e.Type + " " + e.Message}
}
