package analyze

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// toolCall is a call of a tool in the terms of all agents.
type toolCall struct {
	number int    // of the model call
	name   string // of the tool
	given  string // its arguments
	result string
	got    bool // it has a result

	commands bool // it runs commands
	effects  effects
}

// Names of arguments.
func commandKeys() []string {
	return []string{"command", "cmd", "commands", "script", "chars", "keystrokes"}
}

func pathKeys() []string {
	return []string{
		"path", "paths", "file", "files", "file_path", "filePath", "filepath", "absolute_path", "absolutePath", "target_file", "filename", "file_name",
		"directory_path", "dir_path", "directory", "target_directory", "notebook_path", "dir", "old_path", "new_path", "source", "destination",
	}
}

func folderKeys() []string {
	return []string{"workdir", "cwd", "working_directory", "working_dir", "directory", "dir_path", "dir"}
}

// readTool finds the effects of a tool call by the names of its arguments, which
// agents choose for their tools.
func readTool(t *toolCall, f *files) {
	var args map[string]any
	if json.Unmarshal([]byte(t.given), &args) != nil {
		args = map[string]any{"input": t.given} // a tool with free text
	}
	s := &shell{out: &t.effects, files: f, stdin: map[*syntax.Stmt]string{}}
	scripts := scriptsOf(args)
	if len(scripts) > 0 && !hasFile(args) {
		t.commands = true
		for _, k := range folderKeys() {
			if dir, ok := args[k].(string); ok {
				s.dir = absolute("", dir)
				s.out.use(use{s.dir, false, cite(t)})
			}
		}
		for _, script := range scripts {
			readShell(&t.effects, f, s.dir, script, 0)
		}
		return
	}
	for _, k := range slices.Sorted(maps.Keys(args)) {
		if text, ok := args[k].(string); ok && strings.Contains(text, "*** Begin Patch") {
			s.patch(text)
		}
	}
	changes := changesFiles(t.name, args)
	for _, k := range pathKeys() {
		for _, p := range stringsOf(args[k], 0) {
			t.effects.use(use{absolute("", p), changes, cite(t)})
			for _, content := range []string{"content", "contents", "file_text", "new_content", "text"} {
				if text, ok := args[content].(string); ok && changes {
					f.put("", p, text)
				}
			}
		}
	}
	if pattern, ok := args["pattern"].(string); ok && strings.Contains(strings.ToLower(t.name), "glob") {
		t.effects.use(use{absolute("", pattern), false, cite(t)})
	}
}

// cite is a call of a tool as it is cited.
func cite(t *toolCall) string { return t.name + " " + t.given }

// scriptsOf returns the scripts among the arguments of a tool: a text, an argv, or a
// list of texts.
func scriptsOf(args map[string]any) (out []string) {
	for _, k := range commandKeys() {
		switch v := args[k].(type) {
		case string:
			out = append(out, v)
		case []any:
			list := stringsOf(v, 0)
			if k == "commands" {
				out = append(out, list...)
				continue
			}
			if len(list) > 2 && strings.HasSuffix(path.Base(list[0]), "sh") && strings.HasPrefix(list[1], "-") && strings.HasSuffix(list[1], "c") {
				out = append(out, list[2])
				continue
			}
			for i, a := range list {
				if q, err := syntax.Quote(a, syntax.LangBash); err == nil {
					list[i] = q
				}
			}
			out = append(out, strings.Join(list, " "))
		}
	}
	return out
}

// hasFile reports whether a tool has one file, as editors with a command such as
// "view" do.
func hasFile(args map[string]any) bool {
	for _, k := range []string{"path", "file_path", "filePath", "filepath"} {
		if _, ok := args[k].(string); ok {
			return true
		}
	}
	return false
}

// stringsOf returns the texts of a value: a text, a list, or a list of objects with a
// path or a command.
func stringsOf(v any, depth int) (out []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		for _, e := range v[:min(len(v), maxUses)] {
			if depth < 2 {
				out = append(out, stringsOf(e, depth+1)...)
			}
		}
	case map[string]any:
		for _, k := range append(pathKeys(), commandKeys()...) {
			if text, ok := v[k].(string); ok {
				out = append(out, text)
			}
		}
	}
	return out
}

func changesFiles(name string, args map[string]any) bool {
	if c, ok := args["command"].(string); ok && c == "view" {
		return false
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"write", "edit", "create", "replace", "patch", "delete", "insert", "append", "remove", "move", "rename", "save"}, func(verb string) bool {
		return strings.Contains(name, verb)
	})
}

// resultText returns the text of a tool's result. Some agents wrap it in JSON.
func resultText(text string) string {
	if t := strings.TrimSpace(text); t != "" && (t[0] == '[' || t[0] == '{') {
		var v any
		if json.Unmarshal([]byte(t), &v) == nil {
			var lines []string
			leaves(v, 0, &lines)
			return strings.Join(lines, "\n")
		}
	}
	return text
}

func leaves(v any, depth int, out *[]string) {
	if depth > 4 || len(*out) > maxUses {
		return
	}
	switch v := v.(type) {
	case string:
		*out = append(*out, v)
	case float64, bool:
		*out = append(*out, fmt.Sprint(v))
	case []any:
		for _, e := range v {
			leaves(e, depth+1, out)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if k != "query" { // the command itself
				leaves(v[k], depth+1, out)
			}
		}
	}
}
