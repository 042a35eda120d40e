package agents

import (
	"maps"
	"net/http"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// qwenPatch changes two parts of Qwen Code. It runs a prompt that begins with the name of
// a command, and rewrites the words with an @; with a list of parts it does neither. And
// it ends a command when its process ends, perhaps before it has read the output: it now
// reads on until the output ends or, since a process in the background may hold it open,
// for a second.
func qwenPatch() []byte {
	const ends = "if (!streamStdout) {\n            "
	return patch(
		change{"let initialPartList = extractPartsFromUserMessage(", "let initialPartList = options.continueInterrupted ? null : [{ text: input }];\n      void ("},
		change{ends + "handleExit(code, signal);", ends + "child.once(\"close\", () => handleExit(code, signal));\n            setTimeout(() => handleExit(code, signal), POST_EXIT_STREAM_DRAIN_MS);"},
	)
}

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
			files := map[string]File{l.Dir + "/qwen/settings.json": {quote(settings), 0o600}, l.Dir + "/patch.cjs": {qwenPatch(), 0o600}}
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
				l.Installed + "/node/bin/node", "--require", l.Dir + "/patch.cjs", l.Installed + "/qwen/cli.js",
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
