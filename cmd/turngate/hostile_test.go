package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/turngate/turngate/internal/testenv"
)

// hostileText has characters on which a terminal acts: an escape sequence that
// sets the clipboard, one that clears the screen, C1 controls, a change of the
// text's direction, and a carriage return before a forged line.
const hostileText = "\x1b]52;c;cHduZWQ=\a\x1b[2J\x1b[1A\u009b31m\u202egpj\u2028\rforged\x7f\b"

// acts returns the part of a text on which a terminal acts; empty if there is none.
func acts(s string) string {
	at := strings.IndexFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029)
	})
	if at < 0 {
		return ""
	}
	return s[max(at-40, 0):min(at+40, len(s))]
}

// TestNoCommandPrintsControlCharacters runs each command on a job in which the
// task, its files, the agent and the verifier have hostile text.
func TestNoCommandPrintsControlCharacters(t *testing.T) {
	binary := testenv.Binary(t)
	parent := t.TempDir()
	bare := "x" + strings.ReplaceAll(hostileText, "/", "")
	write := func(name, text string) {
		t.Helper()
		at := filepath.Join(parent, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	quoted := `"x\u001b]52;c;cHduZWQ=\u0007\u009b31m\u202e\u2028\rforged"`
	good, fails, wrong := filepath.Join("tasks", bare+"1"), filepath.Join("tasks", bare+"2"), filepath.Join("tasks", bare+"3")
	toml := "unknown" + " = 1\n[task]\nname = " + quoted + "\n[metadata]\na = 1\n[" + quoted + "]\nb = 1\n[verifier.env]\nA = \"${X\\u001b[2J}\"\n"
	for _, dir := range []string{good, fails} {
		write(dir+"/instruction.md", hostileText+"x")
		write(dir+"/task.toml", toml)
		write(dir+"/replay.yaml", "steps:\n- run: "+`"printf '\\033]52;c;x\\007\\033[2J\\rforged\\n'"`+"\n- text: "+quoted+"\n")
		write(dir+"/tests/test.sh", "#!/bin/sh\nprintf '\\033[2J\\rforged\\n'; echo 1 > /logs/verifier/reward.txt; printf '\\033[2J' > '/logs/verifier/\x1b[2J'\n")
	}
	write(fails+"/tests/test.sh", "#!/bin/sh\nprintf '\\033[2J\\rforged\\n' >&2; printf '\\033[2J' > /logs/verifier/reward.txt\n")
	write(wrong+"/instruction.md", "x")
	write(wrong+"/task.toml", "[environment]\nnetwork_mode = "+quoted+"\n")
	write("rows.jsonl", `{"instance_id": `+quoted+`, "x`+"\u009b"+`": 1}`+"\n")
	job := filepath.Join(parent, "runs", bare)
	with := func(args ...string) []string { return append(args, "--runs", filepath.Join(parent, "runs")) }
	for _, c := range []struct {
		name string
		args []string
	}{
		{"run", []string{"run", "--sandbox", "local", "--agent", "mini", "--verbose", "--out", job, filepath.Join(parent, "tasks")}},
		{"run of a command", []string{"run", "--sandbox", "local", "--agent", "command", "--out", job + "4", filepath.Join(parent, good), "--", "sh", "-c", "printf '\\033]52;c;x\\007\\033[2J\\rforged\\n'; printf '\\033[2J' >&2; exit 3"}},
		{"run -o json", []string{"run", "--sandbox", "local", "-o", "json", "--out", job + "5", filepath.Join(parent, good)}},
		{"run of nothing", []string{"run", "/none" + hostileText}},
		{"a wrong flag", []string{"run", "--" + hostileText}},
		{"a wrong value", []string{"run", "-o", hostileText}},
		{"an unknown command", []string{hostileText}},
		{"a wrong job", []string{"run", "--resume", "/none" + hostileText}},
		{"job ls", []string{"job", "ls", filepath.Join(parent, "runs")}}, {"job ls -o json", []string{"job", "ls", "-o", "json", filepath.Join(parent, "runs")}},
		{"job show", []string{"job", "show", job}}, {"job show -o json", []string{"job", "show", "-o", "json", job}}, {"job show of a command", []string{"job", "show", job + "4"}},
		{"job diff", []string{"job", "diff", job, job + "4"}}, {"job share", []string{"job", "share", "-o", filepath.Join(parent, "shared.html"), job}},
		{"rollout ls", []string{"rollout", "ls", job}}, {"rollout ls -o json", []string{"rollout", "ls", "-o", "json", job}}, {"rollout ls -o jsonl", []string{"rollout", "ls", "-o", "jsonl", job + "4"}},
		{"rollout show", []string{"rollout", "show", job}}, {"rollout get", []string{"rollout", "get", job}}, {"rollout logs", []string{"rollout", "logs", job + "4"}},
		{"rollout logs --stderr", []string{"rollout", "logs", "--stderr", job + "4"}}, {"rollout logs of mini", []string{"rollout", "logs", job}},
		{"rollout cp", []string{"rollout", "cp", job, filepath.Join(parent, "copy")}},
		{"rollout export", []string{"rollout", "export", job}}, {"rollout export atif", []string{"rollout", "export", "--format", "atif", job}},
		{"rollout replay", []string{"rollout", "replay", job + "5"}}, {"no such rollout", with("rollout", "show", hostileText)},
		{"task check", []string{"task", "check", "--sandbox", "local", filepath.Join(parent, "tasks")}}, {"task check -o jsonl", []string{"task", "check", "--sandbox", "local", "-o", "jsonl", filepath.Join(parent, fails)}},
		{"task request", []string{"task", "request", filepath.Join(parent, good)}}, {"task request of a wrong one", []string{"task", "request", filepath.Join(parent, wrong)}},
		{"task import", []string{"task", "import", "--out", filepath.Join(parent, "imported"), filepath.Join(parent, "rows.jsonl")}},
		{"agent check", []string{"agent", "check", hostileText}}, {"tap", []string{"tap", hostileText}}, {"dead", []string{"dead", "ls", "--nats", hostileText}},
	} {
		o := turngate(t, binary, c.args...)
		if o.out+o.errOut == "" {
			t.Errorf("%s printed nothing", c.name)
		}
		if at := acts(o.out + "\n" + o.errOut); at != "" {
			t.Errorf("%s printed %q", c.name, at)
		}
	}
}
