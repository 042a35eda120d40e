package analyze

import (
	"regexp"
	"slices"
	"strings"
)

// readCode adds the effects of a program in Python, JavaScript, Perl or Ruby: the
// texts of it that are paths as a whole and that are no part of a message or of a
// comparison, and the commands that it starts.
func readCode(out *effects, f *files, dir, text string, depth int) {
	if depth > maxDepth || len(text) > maxScript {
		return
	}
	text = withoutDocs(text)
	for _, at := range quoted().FindAllStringIndex(text, maxUses) {
		begin, end := at[0], at[1]
		value, line := text[begin+1:end-1], lineAt(text, begin)
		if isComment(line, begin-strings.LastIndexByte(text[:begin], '\n')-1) {
			continue
		}
		function := callee(text[:begin])
		if starts(function) && strings.Contains(value, " ") {
			readShell(out, f, dir, value, depth+1)
			continue
		}
		if says(function) || compared(text[:begin], text[end:]) {
			continue
		}
		out.use(use{absolute(dir, value), writes(function, text[end:]), strings.TrimSpace(line)})
	}
}

// quoted matches a text in quotes without an escape.
func quoted() *regexp.Regexp {
	return regexp.MustCompile("'[^'\\\\\n]{1,1000}'|\"[^\"\\\\\n]{1,1000}\"|`[^`\\\\\n]{1,1000}`")
}

// withoutDocs removes texts of several lines, which are documentation.
func withoutDocs(text string) string {
	for _, quote := range []string{`"""`, `'''`} {
		parts := strings.Split(text, quote)
		for i := 1; i < len(parts); i += 2 {
			if strings.Contains(parts[i], "\n") {
				parts[i] = ""
			}
		}
		text = strings.Join(parts, quote)
	}
	return text
}

func lineAt(text string, at int) string {
	begin := strings.LastIndexByte(text[:at], '\n') + 1
	line, _, _ := strings.Cut(text[begin:], "\n")
	return line
}

// isComment reports whether the part of a line before a column begins a comment.
func isComment(line string, column int) bool {
	before := strings.TrimSpace(line[:min(max(column, 0), len(line))])
	return strings.HasPrefix(before, "#") || strings.HasPrefix(before, "//") || strings.HasPrefix(before, "*") || strings.Contains(before, " # ") || strings.Contains(before, " // ")
}

// lookBack is the number of bytes before a text in which the call around it is found.
const lookBack = 2000

// callee returns the name of the function of which the next text is an argument, or "".
func callee(before string) string {
	depth := 0
	low := max(len(before)-lookBack, 0)
	for i := len(before) - 1; i >= low; i-- {
		switch before[i] {
		case ')':
			depth++
		case '(':
			if depth > 0 {
				depth--
				continue
			}
			end := strings.TrimRight(before[low:i], " ")
			name := end[strings.LastIndexFunc(end, func(r rune) bool {
				return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
			})+1:]
			return name
		}
	}
	return ""
}

// says reports whether a function only shows its arguments.
func says(function string) bool {
	return slices.Contains([]string{"print", "println", "printf", "log", "info", "warn", "warning", "debug", "error", "puts", "Exception", "RuntimeError", "ValueError", "Error", "startswith", "endswith", "startsWith", "endsWith", "replace", "index", "includes", "match", "split", "sub", "add_argument"}, function)
}

// starts reports whether a function runs its argument as a command.
func starts(function string) bool {
	return slices.Contains([]string{"system", "popen", "Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "exec", "execSync", "spawn", "spawnSync", "create_subprocess_shell"}, function)
}

// compared reports whether a text is a side of a comparison.
func compared(before, after string) bool {
	before, after = strings.TrimRight(before[max(len(before)-16, 0):], " "), strings.TrimLeft(after, " ")
	for _, op := range []string{"==", "!=", " in", "=~"} {
		if strings.HasSuffix(before, op) || op != "=~" && strings.HasPrefix(after, strings.TrimSpace(op)+" ") {
			return true
		}
	}
	return false
}

// writes reports whether a function with such a first argument changes it.
func writes(function, after string) bool {
	if slices.Contains([]string{"remove", "unlink", "rmtree", "rename", "makedirs", "mkdir", "chmod", "chown", "symlink", "writeFile", "writeFileSync", "appendFile", "appendFileSync", "rmSync", "unlinkSync", "mkdirSync", "move", "touch", "rmdir"}, function) {
		return true
	}
	after = strings.TrimLeft(after, " ")
	if mode, ok := strings.CutPrefix(after, ","); ok && function == "open" {
		mode = strings.TrimSpace(mode)
		mode = strings.TrimSpace(strings.TrimPrefix(mode, "mode="))
		return len(mode) > 1 && strings.ContainsRune("wax+", rune(mode[1]))
	}
	if rest, ok := strings.CutPrefix(after, ")."); ok {
		for _, name := range []string{"write_text", "write_bytes", "unlink", "touch", "mkdir", "rmdir", "rename", "symlink_to", "chmod", "open(\"w", "open('w", "open(\"a", "open('a"} {
			if strings.HasPrefix(rest, name) {
				return true
			}
		}
	}
	return false
}
