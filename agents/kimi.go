package agents

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// kimi is Moonshot's Kimi Code, a JavaScript bundle with a few packages. It reads
// its task only from an argument.
func kimi() Spec {
	const version = "2.1.0"
	return Spec{
		Name: "kimi", Version: version, Dialect: "chat", Glibc: true, MaxTurns: true, MCP: true, TaskAsArgument: true,
		Sessions: "kimi/sessions", Skills: "kimi/skills", MCPURLs: bothURLs(),
		Packages: []Package{
			{Name: "@moonshot-ai/kimi-code", Version: version, Dir: "kimi"},
			{Name: "ws", Version: "8.18.3", Dir: "kimi/node_modules/ws"},
			{Name: "qrcode", Version: "1.5.4", Dir: "kimi/node_modules/qrcode"},
			{Name: "dijkstrajs", Version: "1.0.3", Dir: "kimi/node_modules/dijkstrajs"},
			{Name: "pngjs", Version: "5.0.0", Dir: "kimi/node_modules/pngjs"},
			nodePackage(), ripgrepPackage(),
		},
		Needs: []string{"rg"}, Carries: ripgrep(),
		Files: func(l Launch) (map[string]File, error) {
			config := []string{
				`default_model = "policy"`,
				"[providers.turngate]", `type = "openai"`, "base_url = " + tomlString(l.BaseURL+"/v1"), "api_key = " + tomlString(l.Key),
				"[models.policy]", `provider = "turngate"`, "model = " + tomlString(l.Model), "max_context_size = 200000",
			}
			if l.MaxTurns > 0 {
				config = append(config, "[loop_control]", "max_steps_per_turn = "+strconv.Itoa(l.MaxTurns))
			}
			files := map[string]File{l.Dir + "/kimi/config.toml": {[]byte(strings.Join(config, "\n") + "\n"), 0o600}}
			if len(l.MCP) > 0 {
				files[l.Dir+"/kimi/mcp.json"] = File{quote(map[string]any{"mcpServers": mcpServers(l, nil, typedURL("transport", "", nil))}), 0o600}
			}
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"KIMI_CODE_HOME": l.Dir + "/kimi", "KIMI_DISABLE_TELEMETRY": "1", "KIMI_CODE_NO_AUTO_UPDATE": "1"})
			args := append([]string{l.Installed + "/node/bin/node", l.Installed + "/kimi/dist/main.mjs", "--output-format", "stream-json"}, l.Args...)
			return Command{Args: append(args, "--prompt="+l.Instruction), Env: env}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseKimi,
	}
}

func parseKimi(line []byte) *Event {
	var e struct {
		Role, Type, Content, Message string
		ToolCallID                   string `json:"tool_call_id"`
		ToolCalls                    []struct {
			ID       string
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	if json.Unmarshal(line, &e) != nil {
		return nil
	}
	switch e.Role {
	case "assistant":
		if len(e.ToolCalls) > 0 { // one line has the whole turn; only its first call becomes an event
			c := e.ToolCalls[0]
			return &Event{Kind: "tool_call", Text: e.Content, Tool: c.Function.Name, ID: c.ID, Input: quote(c.Function.Arguments)}
		}
		return &Event{Kind: "text", Text: e.Content}
	case "tool":
		return &Event{Kind: "tool_result", ID: e.ToolCallID, Output: e.Content}
	case "":
		if e.Type != "error" {
			return nil
		}
		return &Event{Kind: "error", Text: e.Message}
	}
	return &Event{Kind: "other", Text: e.Type}
}
