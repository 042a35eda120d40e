package agents

import (
	"maps"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// Qwen Code runs a prompt that begins with the name of a command, and rewrites the
// words with an @. With a list of parts it does neither.
const (
	qwenReadsPrompt = "let initialPartList = extractPartsFromUserMessage("
	qwenTakesPrompt = "let initialPartList = options.continueInterrupted ? null : [{ text: input }];\n      void ("
)

// qwenCode is Qwen Code, a JavaScript bundle. Memory, which would add calls of
// its own, and the search for tools, which would hide them, are off.
func qwenCode() Spec {
	const version = "0.24.4"
	return Spec{
		Name: "qwen-code", Version: version, Dialect: "chat", Needs: []string{"bash"}, Glibc: true, SystemPrompt: true, MaxTurns: true, MCP: true,
		Sessions: "qwen/projects", Skills: "qwen/skills", MCPURLs: bothURLs(),
		Packages: []Package{
			{Name: "@qwen-code/qwen-code", Version: version, Dir: "qwen"},
			nodePackage(),
		},
		Files: func(l Launch) (map[string]File, error) {
			type object = map[string]any
			settings := object{
				"privacy": object{"usageStatisticsEnabled": false}, "general": object{"enableAutoUpdate": false},
				"memory": object{"enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false},
				"tools":  object{"toolSearch": object{"enabled": false}},
				// The gate keeps a slow call alive; the client's own limits are off.
				"model": object{"generationConfig": object{"timeout": 7_200_000, "streamIdleTimeoutMs": 0, "contextWindowSize": 200_000}},
			}
			if len(l.MCP) > 0 {
				settings["mcpServers"] = mcpServers(l, object{"trust": true}, geminiURL)
			}
			files := map[string]File{l.Dir + "/qwen/settings.json": {quote(settings), 0o600}, l.Dir + "/written.cjs": {asWritten(qwenReadsPrompt, qwenTakesPrompt), 0o600}}
			addSystemPrompt(files, l.Dir+"/system.md", l)
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"OPENAI_MODEL": l.Model, "QWEN_HOME": l.Dir + "/qwen", "QWEN_CODE_NO_RELAUNCH": "true", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1", "QWEN_STREAM_MAX_LIFETIME_MS": "0",
			})
			if l.SystemPrompt != "" {
				env["QWEN_SYSTEM_MD"] = l.Dir + "/system.md"
			}
			args := []string{
				l.Installed + "/node/bin/node", "--require", l.Dir + "/written.cjs", l.Installed + "/qwen/cli.js",
				"--auth-type", "openai", "--output-format", "stream-json", "--approval-mode", "yolo", "-m", l.Model,
			}
			if l.MaxTurns > 0 {
				args = append(args, "--max-session-turns", strconv.Itoa(l.MaxTurns))
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag:        func(_ http.Header, c *schema.Call) string { return withoutTools(c) },
		ParseEvent: parseClaude,
	}
}
