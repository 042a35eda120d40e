package place

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Script returns the command that runs a script of the task at a path in the
// sandbox. It uses the interpreter in the script's first line, otherwise bash,
// or sh if there is no bash. The file's mode bits do not matter. If the first
// line ends in CR LF, no interpreter of Linux could read it, so the script is
// rewritten with LF; other files of the task are not changed.
// A nil script is one that the bundle does not have.
func Script(ctx context.Context, rec *record.Record, sb sandboxes.Sandbox, at string, script *io.SectionReader, owner string) ([]string, error) {
	line, err := firstLine(script)
	if err != nil {
		return nil, err
	}
	if bytes.HasSuffix(line, []byte("\r\n")) {
		if script.Size() > maxRewritten {
			return nil, ends.Fail(schema.Faultf("setup", schema.CodeInvalid, schema.WhoTask, "%s has CR LF line ends and %d bytes: want LF, or at most %d bytes", at, script.Size(), maxRewritten))
		}
		content := make([]byte, script.Size())
		if _, err := script.ReadAt(content, 0); err != nil {
			return nil, fmt.Errorf("read %s: %w", at, err)
		}
		content = bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
		if err := sb.Files().Write(ctx, at, bytes.NewReader(content), 0o755, owner); err != nil {
			return nil, err
		}
		rec.Note("%s has CR LF line ends and ran with LF", at)
	}
	return append(interpreter(line), at), nil
}

const (
	// maxLine is the longest first line of a script that is read, in bytes.
	maxLine = 4 << 10
	// maxRewritten is the largest script that is rewritten, in bytes.
	maxRewritten = 16 << 20
)

// firstLine returns the first line of a script with its line end.
func firstLine(script *io.SectionReader) ([]byte, error) {
	if script == nil {
		return nil, nil
	}
	line := make([]byte, min(script.Size(), maxLine))
	if _, err := script.ReadAt(line, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read a script of the task: %w", err)
	}
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line = line[:end+1]
	}
	return line, nil
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
func ForShell(script *io.SectionReader) (bool, error) {
	line, err := firstLine(script)
	if err != nil {
		return false, err
	}
	for _, word := range strings.Fields(strings.Join(interpreter(line), " ")) {
		switch path.Base(word) {
		case "env", "-S": // the name follows
		case "sh", "bash", "dash", "ash":
			return true, nil
		default:
			return false, nil
		}
	}
	return false, nil
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
