package agents

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// droid is Factory's CLI with a custom model, which needs no login. In its offline
// mode it contacts no other server, and does not wait for answers that cannot
// arrive.
func droid() Spec {
	const version = "0.215.0"
	return Spec{
		Name: "droid", Version: version, Dialect: "chat", Needs: []string{"bash", "ps"}, Glibc: true, SystemPrompt: true,
		Sessions: ".factory/sessions", Skills: ".factory/skills",
		Packages: []Package{{Name: "@factory/cli-linux-{arch}", Version: version, Dir: "droid"}},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			settings := object{"customModels": []any{object{
				"model": l.Model, "displayName": l.Model, "baseUrl": l.BaseURL + "/v1", "apiKey": l.Key, "provider": "generic-chat-completion-api", "maxOutputTokens": 16_384,
			}}}
			files := map[string]File{l.Dir + "/.factory/settings.json": {quote(settings), 0o600}}
			addSystemPrompt(files, l.Dir+"/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"FACTORY_HOME_OVERRIDE": l.Dir, "FACTORY_AIRGAP_ENABLED": "true", "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"})
			args := []string{l.Installed + "/droid/bin/droid", "exec", "-o", "stream-json", "--skip-permissions-unsafe", "-m", "custom:" + l.Model}
			if l.SystemPrompt != "" {
				args = append(args, "--append-system-prompt-file", l.Dir+"/system.md")
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseDroid,
	}
}

func parseDroid(line []byte) *Event {
	var e struct {
		Type, Role, Text, ID, ToolName, Message string
		Parameters, Value                       json.RawMessage
		Error                                   struct{ Message string }
		Usage                                   counted
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "message":
		if e.Role == "assistant" {
			return &Event{Kind: "text", Text: e.Text}
		}
	case "tool_call":
		return &Event{Kind: "tool_call", Tool: e.ToolName, ID: e.ID, Input: e.Parameters}
	case "tool_result":
		return &Event{Kind: "tool_result", ID: e.ID, Output: plainText(e.Value) + e.Error.Message}
	case "completion":
		return e.Usage.event()
	case "error":
		return &Event{Kind: "error", Text: e.Message}
	}
	return &Event{Kind: "other", Text: e.Type}
}

// plainText returns the text of a JSON string, and any other value as JSON.
func plainText(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}
