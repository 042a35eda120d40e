package main_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestBackupOfTheDocs runs the commands of docs/operate.md that save a server and restore
// it, and reads a rollout from the new one.
func TestBackupOfTheDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "operate.md"))
	harness.Must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Backup\n")
	_, section, _ = strings.Cut(section, "```text\n")
	block, _, _ := strings.Cut(section, "```")
	p, temp := newPerson(t), t.TempDir()
	from, to, dir := filepath.Join(temp, "from"), filepath.Join(temp, "to"), filepath.Join(temp, "backup")
	server := regexp.MustCompile(`nats://[0-9.:]+`)
	fromURL, toURL := server.FindString(p.up(t, "--state", from)), ""
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	run := func(id string) []schema.Result {
		return results(t, p.turngate(t, "run", "--nats", fromURL, "--creds", filepath.Join(from, "creds", "trainer-local.nk"), "--agent", "nop", "-o", "json", "--out", filepath.Join(temp, id), good))
	}
	kept := run("before")[0]
	ran := 0
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
		for old, is := range map[string]string{"nats://OLD:4222": fromURL, "nats://NEW:4222": toURL, "OLD/": from + "/", "NEW/": to + "/", " DIR": " " + dir, "--state NEW": "--state " + to, "700 NEW": "700 " + to} {
			line = strings.ReplaceAll(line, old, is)
		}
		args := strings.Fields(line)
		ran++
		switch {
		case args[0] != "turngate":
			harness.Must(t, exec.CommandContext(t.Context(), args[0], args[1:]...).Run())
		case args[1] == "nats":
			toURL = server.FindString(p.serves(t, append(args[1:], "--port", "0")...))
		default:
			if got := p.turngate(t, args[1:]...); got.code != 0 || !strings.Contains(got.out, "EVENTS") {
				t.Fatalf("%s: %+v", line, got)
			}
		}
	}
	if ran != 5 {
		t.Errorf("%d commands in %q", ran, block)
	}
	for _, name := range []string{"backup.json", "EVENTS.snapshot"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
	late := run("after")[0]
	there := []string{"--nats", toURL, "--creds", filepath.Join(to, "creds", "trainer-local.nk")}
	if got := p.turngate(t, append([]string{"rollout", "get", string(kept.ID)}, there...)...); got.code != 0 || !strings.Contains(got.out, `"status": "done"`) {
		t.Errorf("%+v", got)
	}
	if got := p.turngate(t, append([]string{"rollout", "get", string(late.ID)}, there...)...); got.code != 1 {
		t.Errorf("%+v", got)
	}
	admin := filepath.Join(to, "creds", "admin.nk")
	for want, args := range map[string][]string{
		"the server is not empty": {"restore", "--nats", toURL, "--creds", admin, dir},
		"is no backup":            {"restore", "--nats", toURL, "--creds", admin, temp},
		"is not empty, it has":    {"backup", "--nats", toURL, "--creds", admin, dir},
	} {
		if got := p.turngate(t, args...); got.code != 1 || !strings.Contains(got.errOut, want) {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := p.turngate(t, "backup", "--nats", toURL, "--creds", filepath.Join(to, "creds", "ops.nk"), filepath.Join(temp, "none")); got.code != 2 || !strings.Contains(got.errOut, "admin.nk") {
		t.Errorf("%+v", got)
	}
}

// serves starts a server and returns the first line that names its URL. It ends with the
// test.
func (p person) serves(t *testing.T, args ...string) string {
	t.Helper()
	cmd := p.command(t, args...)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	harness.Must(t, err)
	return line
}
