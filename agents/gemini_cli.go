package agents

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// Gemini CLI runs a prompt that begins with the name of a command, and adds the
// files that words with an @ name.
func geminiPatch() []byte {
	return patch(change{"let query;\n      if (isSlashCommand(input)) {", "let query = [{ text: input }];\n      if (!query) {"})
}

// geminiCLI is Google's Gemini CLI, a JavaScript bundle. It ends a call after 60 s
// without data. The gate's keep-alives prevent this.
func geminiCLI() Spec {
	const version = "0.61.0"
	return Spec{
		Name: "gemini-cli", Version: version, Dialect: "gemini", Needs: []string{"bash"}, Glibc: true, SystemPrompt: true, MaxTurns: true, MCP: true,
		Sessions: "home/.gemini/tmp", Skills: "home/.gemini/skills", MCPURLs: bothURLs(),
		Packages: []Package{
			{Name: "@google/gemini-cli", Version: version, Dir: "gemini"},
			nodePackage(),
		},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			settings := object{
				"security": object{"auth": object{"selectedType": "gemini-api-key"}}, "privacy": object{"usageStatisticsEnabled": false},
				"general": object{"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
			}
			if l.MaxTurns > 0 {
				settings["model"] = object{"maxSessionTurns": l.MaxTurns}
			}
			if len(l.MCP) > 0 {
				settings["mcpServers"] = mcpServers(l, object{"trust": true}, geminiURL)
			}
			// The time limit for response headers, in seconds. Gemini CLI has no other
			// setting for it.
			experiments := object{"flags": []object{{"flagId": 45773134, "intValue": "7200"}}}
			files := map[string]File{
				l.Dir + "/home/.gemini/settings.json": {quote(settings), 0o600},
				l.Dir + "/home/.gemini/exp.json":      {quote(experiments), 0o600},
				l.Dir + "/patch.cjs":                  {geminiPatch(), 0o600},
			}
			addSystemPrompt(files, l.Dir+"/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"GEMINI_API_KEY": l.Key, "GOOGLE_GEMINI_BASE_URL": l.BaseURL, "GEMINI_CLI_NO_RELAUNCH": "true",
				"GEMINI_CLI_HOME": l.Dir + "/home", "GEMINI_EXP": l.Dir + "/home/.gemini/exp.json",
			})
			if l.SystemPrompt != "" {
				env["GEMINI_SYSTEM_MD"] = l.Dir + "/system.md"
			}
			args := []string{l.Installed + "/node/bin/node", "--require", l.Dir + "/patch.cjs", l.Installed + "/gemini/bundle/gemini.js", "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust", "-m", l.Model}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseGemini,
	}
}

func parseGemini(line []byte) *Event {
	var e struct {
		Type, Role, Content, Status, Output string
		Tool                                string          `json:"tool_name"`
		ID                                  string          `json:"tool_id"`
		Parameters                          json.RawMessage `json:"parameters"`
		Error                               struct{ Message string }
		Message                             string
		Severity                            string
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "message":
		if e.Role == "assistant" {
			return &Event{Kind: "text", Text: e.Content}
		}
	case "tool_use":
		return &Event{Kind: "tool_call", Tool: e.Tool, ID: e.ID, Input: e.Parameters}
	case "tool_result":
		return &Event{Kind: "tool_result", ID: e.ID, Output: firstOf(e.Output, e.Error.Message)}
	case "result":
		if e.Status == "error" {
			return &Event{Kind: "error", Text: firstOf(e.Error.Message, e.Status)}
		}
	}
	return &Event{Kind: "other", Text: e.Type}
}
