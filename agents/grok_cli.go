package agents

import (
	"maps"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// grokCLIHome runs before Grok CLI and moves its settings out of the user's home
// directory: it has no option for this.
const grokCLIHome = `const os = require("os");
os.homedir = () => __dirname;
require("module").syncBuiltinESMExports();
`

// grokCLI is the community's Grok CLI, JavaScript with its dependencies. It reads
// its task only from an argument, does not stream, and always ends with status 0.
func grokCLI() Spec {
	const version = "0.0.34"
	return Spec{
		Name: "grok-cli", Version: version, Dialect: "chat", Glibc: true, MaxTurns: true, TaskAsArgument: true,
		Packages: []Package{
			{Name: "@vibe-kit/grok-cli", Version: version, Dir: "grok-cli", Before: "2026-11-20"},
			nodePackage(),
		},
		Files: func(l Launch) (map[string]File, error) {
			return map[string]File{l.Dir + "/home.cjs": {[]byte(grokCLIHome), 0o600}}, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{"GROK_BASE_URL": l.BaseURL + "/v1", "GROK_API_KEY": l.Key, "GROK_MODEL": l.Model, "GROK_MAX_TOKENS": "32000"})
			args := []string{l.Installed + "/node/bin/node", "--require", l.Dir + "/home.cjs", l.Installed + "/grok-cli/node_modules/@vibe-kit/grok-cli/dist/index.js"}
			if l.MaxTurns > 0 {
				args = append(args, "--max-tool-rounds", strconv.Itoa(l.MaxTurns))
			}
			return Command{Args: append(append(args, l.Args...), "--prompt="+l.Instruction), Env: env}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseKimi,
	}
}
