package agents

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// continueCLI is Continue's cn, a JavaScript bundle. Its configuration is written
// as JSON, which is valid YAML.
func continueCLI() Spec {
	const version = "1.5.47"
	return Spec{
		Name: "continue", Version: version, Dialect: "chat", Needs: []string{"bash"}, Glibc: true, MCP: true,
		Sessions: ".continue/sessions", Skills: ".continue/skills", MCPURLs: bothURLs(),
		Packages: []Package{
			{Name: "@continuedev/cli", Version: version, Dir: "continue"},
			nodePackage(),
		},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			config := object{
				"name": "turngate", "version": "0.0.1", "schema": "v1",
				"models": []any{object{
					"name": "policy", "provider": "openai", "model": l.Model, "apiBase": l.BaseURL + "/v1", "apiKey": l.Key,
					"roles": []string{"chat", "edit", "apply"}, "capabilities": []string{"tool_use"},
				}},
			}
			var servers []any
			for _, m := range l.MCP {
				if m.URL != "" {
					servers = append(servers, object{"name": m.Name, "type": m.Transport, "url": m.URL})
					continue
				}
				server := object{"name": m.Name, "command": m.Command[0], "args": append([]string{}, m.Command[1:]...)}
				if len(m.Env) > 0 {
					server["env"] = m.Env
				}
				servers = append(servers, server)
			}
			if len(servers) > 0 {
				config["mcpServers"] = servers
			}
			return map[string]File{l.Dir + "/continue.yaml": {quote(config), 0o600}}, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"CONTINUE_GLOBAL_DIR": l.Dir + "/.continue", "CONTINUE_TELEMETRY_ENABLED": "0"})
			args := append([]string{l.Installed + "/node/bin/node", l.Installed + "/continue/dist/cn.js", "--config", l.Dir + "/continue.yaml", "--auto", "--format", "json"}, l.Args...)
			return Command{Args: append(args, "-p"), Env: env, Stdin: l.Instruction} // cn reads stdin only if -p comes last
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseContinue,
	}
}

// parseContinue reads the single line that cn prints when it ends.
func parseContinue(line []byte) *Event {
	var e struct{ Response, Status, Message string }
	if json.Unmarshal(line, &e) != nil || e.Status == "" {
		return nil
	}
	if e.Status != "success" {
		return &Event{Kind: "error", Text: e.Message}
	}
	return &Event{Kind: "text", Text: e.Response}
}
