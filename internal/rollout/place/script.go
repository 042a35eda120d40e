package place

import (
	"bytes"
	"context"
	"path"
	"strings"

	"github.com/turngate/turngate/sandboxes"
)

// Script returns the command that runs a script of the task at a path in the
// sandbox. It uses the interpreter in the script's first line, otherwise bash,
// or sh if there is no bash. The file's mode bits do not matter. If the first
// line ends in CR LF, no interpreter of Linux could read it, so the script is
// rewritten with LF; other files of the task are not changed.
func (p *Place) Script(ctx context.Context, sb sandboxes.Sandbox, at string, content []byte, owner string) ([]string, error) {
	if first, _, found := bytes.Cut(content, []byte("\n")); found && bytes.HasSuffix(first, []byte("\r")) {
		content = bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
		if err := sb.Files().Write(ctx, at, content, 0o755, owner); err != nil {
			return nil, err
		}
		p.Stages.Record.Note("%s has CR LF line ends and ran with LF", at)
	}
	return append(interpreter(content), at), nil
}

// interpreter parses a script's first line as the kernel does: a program, and
// the rest of the line as one argument.
func interpreter(script []byte) []string {
	line, _, _ := bytes.Cut(script, []byte("\n"))
	text, ok := strings.CutPrefix(string(line), "#!")
	if text = strings.Trim(text, " \t\r"); !ok || text == "" {
		return BashOrSh()
	}
	at := strings.IndexAny(text, " \t")
	if at < 0 {
		return []string{text}
	}
	return []string{text[:at], strings.TrimLeft(text[at:], " \t")}
}

// ForShell reports whether a script's first line names a shell, or nothing.
func ForShell(script []byte) bool {
	for _, word := range strings.Fields(strings.Join(interpreter(script), " ")) {
		switch path.Base(word) {
		case "env", "-S": // the name follows
		case "sh", "bash", "dash", "ash":
			return true
		default:
			return false
		}
	}
	return false
}

// BashOrSh is the start of a command: bash, or sh if there is no bash. Its
// arguments follow.
func BashOrSh() []string {
	return []string{"/bin/sh", "-c", `if command -v bash >/dev/null; then exec bash "$@"; fi; exec /bin/sh "$@"`, "sh"}
}

// Bash returns the argv that runs text of the task in its main container as one command.
func Bash(text string) []string { return append(BashOrSh(), "-c", text) }

// Shell returns the argv that runs shell text of the task's author.
func Shell(text string) []string { return []string{"/bin/sh", "-c", text} }
