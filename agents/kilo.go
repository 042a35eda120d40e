package agents

import (
	"maps"
	"net/http"
	"strings"

	"github.com/turngate/turngate/schema"
)

// kilo is Kilo Code's CLI (https://kilo.ai), a fork of OpenCode with the same form
// of configuration. Features that the task does not need, such as an index of the
// code, are off.
func kilo() Spec {
	const version = "7.7.7"
	return Spec{
		Name: "kilo", Version: version, Dialect: "chat", Glibc: true, SystemPrompt: true, MCP: true,
		Sessions: "data/kilo", Skills: "config/kilo/skills", MCPURLs: bothURLs(),
		Packages: []Package{{Name: "@kilocode/cli-linux-{arch}", Version: version, Dir: "kilo"}, ripgrepPackage()},
		Needs:    []string{"rg"}, Carries: ripgrep(),
		Files: func(l Launch) (map[string]File, error) {
			return map[string]File{
				l.Dir + "/config/kilo/kilo.json": {quote(opencodeConfig(l, "https://app.kilo.ai/config.json", "code")), 0o600},
				xdgPluginPath(l):                 {[]byte(xdgPlugin), 0o600},
			}, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"KILO_DISABLE_AUTOUPDATE": "1", "KILO_DISABLE_MODELS_FETCH": "1", "KILO_DISABLE_LSP_DOWNLOAD": "1",
				"KILO_DISABLE_DEFAULT_PLUGINS": "1", "KILO_DISABLE_AUTOCOMPACT": "1",
				"KILO_TELEMETRY_LEVEL": "off", "KILO_DISABLE_SESSION_INGEST": "1", "KILO_DISABLE_PRESENCE": "1",
				"KILO_DISABLE_CODEBASE_INDEXING": "1", "KILO_NO_DAEMON": "1",
			})
			args := withXDG(l, l.Installed+"/kilo/bin/kilo", "run", "--format", "json", "--auto", "--title", "task")
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag: func(h http.Header, c *schema.Call) string {
			switch {
			case h.Get("X-Parent-Session-Id") != "":
				return schema.TagSubagent
			case strings.HasPrefix(h.Get("X-Session-Id"), "title-"):
				return schema.TagAux
			}
			return withoutTools(c)
		},
		ParseEvent: parseOpencode,
	}
}
