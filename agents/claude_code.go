package agents

import (
	"encoding/json"
	"maps"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// claudeCode is Anthropic's Claude Code, a Bun executable that speaks the
// Messages API. Permission prompts are off because the sandbox isolates the
// agent. As root, Claude Code allows this only if a variable says that it runs in a
// sandbox.
func claudeCode() Spec {
	const version = "2.1.329"
	return Spec{
		Name: "claude-code", Version: version, Dialect: "messages", Needs: []string{"bash"}, Glibc: true, SystemPrompt: true, MaxTurns: true, MCP: true,
		Sessions: "claude/projects", Skills: "claude/skills", MCPURLs: bothURLs(),
		Packages: []Package{{Name: "@anthropic-ai/claude-code-linux-{arch}", Version: version, Dir: "claude"}},
		Files: func(l Launch) (map[string]File, error) {
			files := map[string]File{}
			addSystemPrompt(files, l.Dir+"/system.md", l)
			if len(l.MCP) > 0 {
				files[l.Dir+"/mcp.json"] = File{quote(map[string]any{"mcpServers": mcpServers(l, nil, typedURL("type", "http", nil))}), 0o600}
			}
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"ANTHROPIC_BASE_URL": l.BaseURL, "ANTHROPIC_API_KEY": l.Key, "CLAUDE_CONFIG_DIR": l.Dir + "/claude", "IS_SANDBOX": "1",
				"ANTHROPIC_DEFAULT_HAIKU_MODEL": l.Model, "ANTHROPIC_DEFAULT_SONNET_MODEL": l.Model, "ANTHROPIC_DEFAULT_OPUS_MODEL": l.Model,
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
				"CLAUDE_CODE_ATTRIBUTION_HEADER": "0", "ENABLE_TOOL_SEARCH": "false",
				// The gate keeps a slow call alive; the client's own limits are off.
				"API_TIMEOUT_MS": "7200000", "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": "7200000", "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "7200000",
			})
			args := []string{l.Installed + "/claude/claude", "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions", "--model", l.Model}
			if l.SystemPrompt != "" {
				args = append(args, "--system-prompt-file", l.Dir+"/system.md")
			}
			if len(l.MCP) > 0 {
				args = append(args, "--mcp-config", l.Dir+"/mcp.json", "--strict-mcp-config")
			}
			if l.MaxTurns > 0 {
				args = append(args, "--max-turns", strconv.Itoa(l.MaxTurns))
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: claudePrompt(l.Instruction)}
		},
		Tag: func(h http.Header, c *schema.Call) string {
			if h.Get("X-Claude-Code-Agent-Id") != "" {
				return schema.TagSubagent
			}
			return withoutTools(c)
		},
		ParseEvent: parseClaude,
	}
}

// claudePrompt is the instruction in the form of --input-format stream-json. In a
// prompt that was typed, a first / is a command and a # or an @ has a meaning.
func claudePrompt(instruction string) string {
	return string(quote(map[string]any{
		"type": "user", "session_id": "", "parent_tool_use_id": nil, "text_not_typed": true,
		"message": map[string]any{"role": "user", "content": instruction},
	})) + "\n"
}

// claudeBlock is one block of a message in the output of Claude Code and of Qwen
// Code.
type claudeBlock struct {
	Type, Text, Thinking, ID, Name string
	Input, Content                 json.RawMessage
	ToolUseID                      string `json:"tool_use_id"`
}

func parseClaude(line []byte) *Event {
	var e struct {
		Type, Subtype string
		Message       struct{ Content []claudeBlock }
		IsError       bool            `json:"is_error"`
		Result        json.RawMessage `json:"result"`
		Error         json.RawMessage `json:"error"`
		Usage         counted
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "assistant", "user":
		for _, b := range e.Message.Content { // each line has at most one block to show
			switch b.Type {
			case "text":
				if e.Type == "assistant" {
					return &Event{Kind: "text", Text: b.Text}
				}
			case "thinking":
				return &Event{Kind: "text", Text: b.Thinking}
			case "tool_use":
				return &Event{Kind: "tool_call", Tool: b.Name, ID: b.ID, Input: b.Input}
			case "tool_result":
				return &Event{Kind: "tool_result", ID: b.ToolUseID, Output: claudeText(b.Content)}
			}
		}
	case "result": // the subtype is success even after an error of the API
		if e.IsError {
			return &Event{Kind: "error", Text: firstOf(claudeText(e.Result), claudeText(e.Error), e.Subtype)}
		}
		return e.Usage.event()
	}
	return &Event{Kind: "other", Text: e.Type + " " + e.Subtype}
}

// claudeText returns the text of a JSON string or of a list of blocks, else the
// JSON itself.
func claudeText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var blocks []claudeBlock
	if json.Unmarshal(raw, &blocks) != nil {
		return string(raw)
	}
	for _, b := range blocks {
		s += b.Text
	}
	return s
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" && t != "null" {
			return t
		}
	}
	return ""
}
