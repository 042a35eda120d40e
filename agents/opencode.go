package agents

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// opencode is OpenCode (https://opencode.ai), a Bun executable. It reads its whole
// configuration from the environment. Permission prompts are off because the
// sandbox isolates the agent. A given title avoids the model call for one.
func opencode() Spec {
	const version = "1.18.33"
	return Spec{
		Name: "opencode", Version: version, Dialect: "chat", Glibc: true, SystemPrompt: true, MCP: true,
		Sessions: "data/opencode", Skills: "config/opencode/skills", MCPURLs: bothURLs(),
		Packages: []Package{{Name: "opencode-linux-{arch}", Version: version, Dir: "opencode"}, ripgrepPackage()},
		Needs:    []string{"rg"}, Carries: ripgrep(),
		Files: func(l Launch) (map[string]File, error) {
			files := map[string]File{
				xdgPluginPath(l): {[]byte(xdgPlugin), 0o600},
				// With a plugin, OpenCode waits until npm has installed this package there, and
				// in each .opencode of the working directory: xdgScript limits that.
				l.Dir + "/config/opencode/node_modules":      {nil, 0o600},
				l.Dir + "/config/opencode/package-lock.json": {[]byte(`{"packages": {"": {"dependencies": {"@opencode-ai/plugin": "` + version + `"}}}}`), 0o600},
			}
			addSystemPrompt(files, l.Dir+"/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			config := l
			if l.SystemPrompt != "" { // a variable of the environment has at most 128 KiB
				config.SystemPrompt = "{file:" + l.Dir + "/system.md}"
			}
			maps.Copy(env, map[string]string{
				"OPENCODE_CONFIG_CONTENT":       string(quote(opencodeConfig(config, "https://opencode.ai/config.json", "build"))),
				"OPENCODE_DISABLE_AUTOUPDATE":   "1",
				"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
				"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_AUTOCOMPACT": "1",
			})
			args := withXDG(l, l.Installed+"/opencode/bin/opencode", "run", "--format", "json", "--auto", "--title", "task")
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag: func(h http.Header, c *schema.Call) string {
			if h.Get("X-Parent-Session-Id") != "" {
				return schema.TagSubagent
			}
			return withoutTools(c)
		},
		ParseEvent: parseOpencode,
	}
}

// xdgScript starts OpenCode with its data, state, cache and configuration below the
// folder $0. It keeps the variables that the image has.
const xdgScript = `export IMAGE_XDG_DATA_HOME="$XDG_DATA_HOME" IMAGE_XDG_STATE_HOME="$XDG_STATE_HOME" IMAGE_XDG_CACHE_HOME="$XDG_CACHE_HOME" IMAGE_XDG_CONFIG_HOME="$XDG_CONFIG_HOME"
export XDG_DATA_HOME="$0/data" XDG_STATE_HOME="$0/state" XDG_CACHE_HOME="$0/cache" XDG_CONFIG_HOME="$0/config" npm_config_fetch_retries=0
exec "$@"`

// xdgPlugin is a plugin of OpenCode, which has read the variables of xdgScript when
// it loads its plugins. Programs that it starts get the image's variables.
const xdgPlugin = `export const ImageVariables = async () => {
  for (const name of ["XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"]) {
    const image = process.env["IMAGE_" + name];
    if (image) process.env[name] = image;
    else delete process.env[name];
    delete process.env["IMAGE_" + name];
  }
  delete process.env.npm_config_fetch_retries;
  return {};
};
`

func xdgPluginPath(l Launch) string { return l.Dir + "/plugin.js" }

// withXDG returns an argv that runs xdgScript.
func withXDG(l Launch, args ...string) []string {
	return append([]string{"/bin/sh", "-c", xdgScript, l.Dir}, args...)
}

// opencodeConfig returns the configuration of OpenCode or of a fork. agent is the
// name of its main agent.
func opencodeConfig(l Launch, schemaURL, agent string) map[string]any {
	type object = map[string]any
	config := object{
		"$schema": schemaURL, "model": "turngate/" + l.Model, "small_model": "turngate/" + l.Model,
		"autoupdate": false, "share": "disabled", "permission": "allow",
		"plugin": []string{"file://" + xdgPluginPath(l)},
		"provider": object{"turngate": object{
			"npm": "@ai-sdk/openai-compatible", "name": "turngate",
			// The gate keeps a slow call alive; the client's own limits are off.
			"options": object{"baseURL": l.BaseURL + "/v1", "apiKey": l.Key, "headerTimeout": false, "chunkTimeout": 7_200_000, "timeout": false},
			"models":  object{l.Model: object{"name": l.Model, "limit": object{"context": 200_000, "output": 32_000}}},
		}},
	}
	if l.SystemPrompt != "" {
		config["agent"] = object{agent: object{"prompt": l.SystemPrompt}}
	}
	servers := object{}
	for _, m := range l.MCP {
		server := object{"type": "local", "command": m.Command, "environment": m.Env}
		if m.URL != "" { // OpenCode detects the transport
			server = object{"type": "remote", "url": m.URL}
		}
		// The default of 5 s loses the tools of a server on a busy host, without an error.
		server["enabled"], server["timeout"] = true, 600_000
		servers[m.Name] = server
	}
	if len(servers) > 0 {
		config["mcp"] = servers
	}
	return config
}

func parseOpencode(line []byte) *Event {
	var e struct {
		Type string
		Part struct {
			Text   string
			Tool   string
			CallID string
			State  struct {
				Input  json.RawMessage
				Output string
				Error  string
			}
			Tokens struct{ Input, Output int64 }
		}
		Error struct {
			Name string
			Data struct{ Message string }
		}
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "text":
		return &Event{Kind: "text", Text: e.Part.Text}
	case "tool_use":
		return &Event{Kind: "tool_result", Tool: e.Part.Tool, ID: e.Part.CallID, Input: e.Part.State.Input, Output: e.Part.State.Output + e.Part.State.Error}
	case "step_finish":
		return &Event{Kind: "usage", Usage: &schema.Usage{PromptTokens: e.Part.Tokens.Input, CompletionTokens: e.Part.Tokens.Output}}
	case "error":
		text := e.Error.Data.Message
		if text == "" {
			text = e.Error.Name
		}
		return &Event{Kind: "error", Text: text}
	default:
		return &Event{Kind: "other", Text: e.Type}
	}
}
