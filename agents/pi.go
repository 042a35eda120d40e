package agents

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/turngate/turngate/schema"
)

// pi is the Pi coding agent, a JavaScript bundle that needs Node 22.19 or
// later, which is one of its packages. It has no permission prompts and makes no
// network calls of its own. It ends with status 0 even if a model call failed;
// only its output shows the failure.
func pi() Spec {
	const version = "1.5.2"
	return Spec{
		Name: "pi", Version: version, Dialect: "chat", Glibc: true, SystemPrompt: true, MCP: true,
		Sessions: "pi/sessions", Skills: "pi/skills", MCPURLs: bothURLs(),
		Packages: []Package{
			{Name: "@earendil-works/pi-coding-agent", Version: version, Dir: "pi"},
			nodePackage(),
		},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			models := object{"providers": object{"turngate": object{
				"baseUrl": l.BaseURL + "/v1", "api": "openai-completions", "apiKey": l.Key,
				"models": []object{{"id": l.Model, "contextWindow": 200_000, "maxTokens": 32_000}},
			}}}
			settings := object{"httpIdleTimeoutMs": "disabled", "enableInstallTelemetry": false}
			files := map[string]File{
				l.Dir + "/pi/models.json":   {quote(models), 0o600},
				l.Dir + "/pi/settings.json": {quote(settings), 0o600},
			}
			if len(l.MCP) > 0 { // direct: otherwise a single proxy tool hides the tools
				files[l.Dir+"/pi/mcp.json"] = File{quote(object{"mcpServers": mcpServers(l, object{"exposure": "direct"}, typedURL("type", "", object{"exposure": "direct"}))}), 0o600}
			}
			addSystemPrompt(files, l.Dir+"/pi/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"PI_CODING_AGENT_DIR": l.Dir + "/pi", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"})
			args := []string{
				l.Installed + "/node/bin/node", l.Installed + "/pi/dist/bundle/cli.js",
				"-p", "--mode", "json", "--provider", "turngate", "--model", l.Model, "--offline",
			}
			if l.SystemPrompt != "" {
				args = append(args, "--system-prompt", l.Dir+"/pi/system.md")
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		ParseEvent: parsePi,
	}
}

func parsePi(line []byte) *Event {
	var e struct {
		Type       string
		ToolCallID string
		ToolName   string
		Args       json.RawMessage
		Success    *bool
		FinalError string
		Result     json.RawMessage
		Message    struct {
			Role         string
			Content      json.RawMessage
			StopReason   string
			ErrorMessage string
			Usage        struct{ Input, Output int64 }
		}
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "message_end":
		if e.Message.StopReason == "error" {
			return &Event{Kind: "error", Text: e.Message.ErrorMessage}
		}
		if e.Message.Role != "assistant" {
			return &Event{Kind: "other", Text: e.Type}
		}
		return &Event{Kind: "text", Text: piText(e.Message.Content), Usage: &schema.Usage{PromptTokens: e.Message.Usage.Input, CompletionTokens: e.Message.Usage.Output}}
	case "tool_execution_start":
		return &Event{Kind: "tool_call", Tool: e.ToolName, ID: e.ToolCallID, Input: e.Args}
	case "tool_execution_end":
		return &Event{Kind: "tool_result", Tool: e.ToolName, ID: e.ToolCallID, Output: string(e.Result)}
	case "auto_retry_end":
		if e.Success != nil && !*e.Success {
			return &Event{Kind: "error", Text: e.FinalError}
		}
	case "message_update": // one line per token: the model calls have the same text
		return nil
	}
	return &Event{Kind: "other", Text: e.Type}
}

func piText(content json.RawMessage) string {
	var parts []struct{ Type, Text string }
	if json.Unmarshal(content, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type == "text" {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}
