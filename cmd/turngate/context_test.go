package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// person runs the binary with contexts of its own.
type person struct {
	binary, home string
}

func newPerson(t *testing.T) person {
	t.Helper()
	return person{testenv.Binary(t), t.TempDir()}
}

func (p person) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(p.binary, args...)
	cmd.Dir = testenv.Root(t)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TURNGATE_CONTEXT=") })
	cmd.Env = append(cmd.Env, "XDG_CONFIG_HOME="+p.home)
	return cmd
}

func (p person) turngate(t *testing.T, args ...string) outcome {
	t.Helper()
	return outcomeOf(t, p.command(t, args...))
}

// outcomeOf runs a command.
func outcomeOf(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// up starts `turngate up` and returns its stdout, once it has printed the context.
func (p person) up(t *testing.T, args ...string) string {
	t.Helper()
	cmd := p.command(t, append([]string{"up", "--port", "0", "--sandboxes", "local"}, args...)...)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	var log bytes.Buffer
	cmd.Stderr = &log
	harness.Must(t, cmd.Start())
	var said strings.Builder
	b := make([]byte, 4096)
	for !strings.Contains(said.String(), "\ncontext ") {
		n, err := out.Read(b)
		said.Write(b[:n])
		if err != nil {
			break
		}
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("up: %v\n%s", err, log.String())
		}
	})
	if !strings.Contains(said.String(), "\ncontext ") {
		t.Fatalf("up tells no context:\n%s", said.String())
	}
	return said.String()
}

// TestContexts starts a server, which makes its context, and connects as several roles
// by that name alone.
func TestContexts(t *testing.T) {
	p, state := newPerson(t), filepath.Join(t.TempDir(), "lab")
	said := p.up(t, "--state", state)
	if !strings.Contains(said, "\ncontext  up-lab: turngate context use up-lab") {
		t.Fatalf("up says %s", said)
	}
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	job := filepath.Join(t.TempDir(), "job")
	check := func(code int, says string, args ...string) {
		t.Helper()
		got := p.turngate(t, args...)
		if got.code != code || !strings.Contains(got.out+got.errOut, says) || code == 2 && strings.Count(got.errOut, "\n") != 1 {
			t.Errorf("%v: %+v\nwant %d, %q", args, got, code, says)
		}
	}
	check(0, `"backends"`, "worker", "ls", "--context", "up-lab", "-o", "json")
	check(2, "there is no current context", "context", "show")
	check(0, "", "context", "use", "up-lab")
	check(0, `"backends"`, "worker", "ls", "-o", "json")
	check(0, "context up-lab: workers at nats://127.0.0.1:", "run", "--agent", "nop", "--out", job, good)
	check(0, "ROLLOUT", "rollout", "ls")
	check(0, `"agent": "nop"`, "rollout", "get", job) // a path is on this machine
	check(2, "--context: it has the URL and the credentials", "worker", "ls", "--context", "up-lab", "--nats", "nats://127.0.0.1:1")
	check(2, `context "none": there is none of that name; contexts are: up-lab`, "tap", "--context", "none")
	check(2, "needs that of the trainer alpha: there is no", "run", "--name", "alpha", good)
	check(2, "worker-local.nk is that of the worker local", "worker", "ls", "--nats", "nats://127.0.0.1:1", "--creds", filepath.Join(state, "creds", "worker-local.nk"))
	check(0, "trainer  alpha:", "trainer", "add", "alpha")
	check(0, "", "run", "--agent", "nop", "--name", "alpha", "--out", filepath.Join(t.TempDir(), "j"), good)

	renamed, url := filepath.Join(t.TempDir(), "mine.nk"), ""
	data, err := os.ReadFile(filepath.Join(state, "creds", "trainer-local.nk"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(renamed, data, 0o600))
	var shown struct {
		URL     string
		Creds   string
		Current bool
	}
	got := p.turngate(t, "context", "show")
	if err := json.Unmarshal([]byte(got.out), &shown); err != nil || !shown.Current || shown.Creds != filepath.Join(state, "creds", "ops.nk") {
		t.Fatalf("%+v, %v", got, err)
	}
	url = shown.URL
	check(2, "mine.nk is not that of an operator (ops.nk)", "tap", "--nats", url, "--creds", renamed)
	check(2, "mine.nk is not that of the trainer alpha", "trainer", "serve", "--nats", url, "--creds", renamed, "--name", "alpha", "--trainer", "upstream:http://127.0.0.1:1")
	check(0, "", "context", "add", "mine", "--nats", url, "--creds", renamed)
	check(1, "there is a context of that name", "context", "add", "mine", "--nats", url)
	check(0, "", "rollout", "ls", "--context", "mine", "--trainer", "local")
	check(2, "--nats:", "context", "add", "x", "--nats", "nats://me:s3cret@host")
	if got := p.turngate(t, "context", "ls", "-o", "jsonl"); got.code != 0 || strings.Count(got.out, "\n") != 2 || !strings.Contains(got.out, `"name":"mine"`) {
		t.Errorf("%+v", got)
	}
	if got := p.turngate(t, "context", "ls", "-o", "yaml"); got.code != 0 || !strings.Contains(got.out, "- name: mine\n  url: "+url+"\n") {
		t.Errorf("%+v", got)
	}
	check(0, "*  up-lab", "context", "ls")
	check(0, "", "context", "rm", "up-lab")
	check(2, "there is no current context", "context", "show")
	info, err := os.Stat(filepath.Join(p.home, "nats", "context", "mine.json"))
	harness.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v", info.Mode())
	}
}

// TestAJobKeepsItsServer: the current context of a later command does not move it.
func TestAJobKeepsItsServer(t *testing.T) {
	p := newPerson(t)
	good, job := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done}), filepath.Join(t.TempDir(), "job")
	if got := p.turngate(t, "run", "--agent", "nop", "--out", job, good); got.code != 0 || strings.Contains(got.errOut, "context") {
		t.Fatalf("%+v", got)
	}
	for _, args := range [][]string{{"context", "add", "gone", "--nats", "nats://127.0.0.1:1"}, {"context", "use", "gone"}, {"run", "--resume", job}, {"run", "--context", "", "--agent", "nop", "--out", job + "2", good}, {"rollout", "ls", job}} {
		if got := p.turngate(t, args...); got.code != 0 {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := p.turngate(t, "run", "--agent", "nop", "--out", job+"3", good); got.code != 1 || !strings.Contains(got.errOut, "context gone: connect to NATS at nats://127.0.0.1:1") {
		t.Errorf("%+v", got)
	}
}
