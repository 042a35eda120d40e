package agents

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// cline is Cline's CLI, a Bun executable. It reads its task only from an argument.
func cline() Spec {
	const version = "3.0.65"
	return Spec{
		Name: "cline", Version: version, Dialect: "chat", Needs: []string{"bash"}, Glibc: true, MCP: true, TaskAsArgument: true,
		Sessions: ".cline/data/sessions", Skills: ".cline/skills", MCPURLs: bothURLs(),
		Packages: []Package{{Name: "@cline/cli-linux-{arch}", Version: version, Dir: "cline"}},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			settings := object{"provider": "openai-compatible", "apiKey": l.Key, "model": l.Model, "baseUrl": l.BaseURL + "/v1"}
			providers := object{
				"version": 1, "lastUsedProvider": "openai-compatible", "modes": object{},
				"providers": object{"openai-compatible": object{"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}},
			}
			files := map[string]File{l.Dir + "/.cline/data/settings/providers.json": {quote(providers), 0o600}}
			if len(l.MCP) > 0 {
				files[l.Dir+"/.cline/data/settings/cline_mcp_settings.json"] = File{quote(object{"mcpServers": mcpServers(l, nil, typedURL("type", "streamableHttp", nil))}), 0o600}
			}
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"CLINE_DIR": l.Dir + "/.cline", "CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"})
			args := []string{l.Installed + "/cline/bin/cline", "--json", "--auto-approve", "true", "-P", "openai-compatible", "-m", l.Model}
			return Command{Args: append(append(args, l.Args...), "--", l.Instruction), Env: env}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseCline,
	}
}

func parseCline(line []byte) *Event {
	var e struct {
		Type, Message string
		Event         struct {
			Type, ContentType, Text, ToolName, ToolCallID string
			Input, Output                                 json.RawMessage
			InputTokens, OutputTokens                     int64
			Error                                         json.RawMessage
		}
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	if e.Type == "error" {
		return &Event{Kind: "error", Text: e.Message}
	}
	switch what := e.Event.Type + " " + e.Event.ContentType; what {
	case "content_end text":
		return &Event{Kind: "text", Text: e.Event.Text}
	case "content_start tool":
		return &Event{Kind: "tool_call", Tool: e.Event.ToolName, ID: e.Event.ToolCallID, Input: e.Event.Input}
	case "content_end tool":
		return &Event{Kind: "tool_result", Tool: e.Event.ToolName, ID: e.Event.ToolCallID, Output: plainText(e.Event.Output)}
	case "usage ":
		return &Event{Kind: "usage", Usage: &schema.Usage{PromptTokens: e.Event.InputTokens, CompletionTokens: e.Event.OutputTokens}}
	case "error ":
		return &Event{Kind: "error", Text: plainText(e.Event.Error)}
	}
	return &Event{Kind: "other", Text: e.Type}
}
