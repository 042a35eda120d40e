package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// machine starts a machine that has a credential.
func (b *bench) machine(t *testing.T, name, state string) *process {
	t.Helper()
	if _, err := os.Stat(b.nats.MachineCreds(name)); err != nil {
		harness.Must(t, b.nats.AddMachine(name, ""))
		harness.Must(t, b.nats.Reload())
	}
	m := start(t, b.binary, "machine", "serve", "--nats", b.nats.URL(), "--creds", b.nats.MachineCreds(name), "--state", state, "--slots", "2")
	harness.Eventually(t, "the machine", 5*time.Minute, func() bool { return strings.Contains(m.err.String(), "the machine is ready") })
	return m
}

// TestRolloutsOnAMachine runs tasks on a machine that dials out: a task that the agent
// solves, and one that it does not. Then the machine is killed while an agent works, and
// started again: the rollout runs again there, and nothing of the first attempt is left.
func TestRolloutsOnAMachine(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	tasks := filepath.Join(testenv.Root(t), "examples/tasks")
	keys := filepath.Dir(b.nats.AdminCreds())
	add := start(t, b.binary, "machine", "add", "build1", "--nats", b.nats.URL(), "--keys", keys)
	if code := add.wait(t, 5*time.Minute); code != 0 || !strings.Contains(add.out.String(), "turngate machine serve") {
		t.Fatalf("machine add: %d, %s", code, add.out)
	}
	state := t.TempDir()
	m := b.machine(t, "build1", state)
	b.worker(t, "", "--sandboxes", "machine")
	second := start(t, b.binary, "machine", "serve", "--nats", b.nats.URL(), "--creds", b.nats.MachineCreds("build1"), "--state", state)
	if code := second.wait(t, 5*time.Minute); code == 0 || !strings.Contains(second.err.String(), "another machine uses the state directory") {
		t.Errorf("a second process: %d, %s", code, second.err)
	}
	ls := start(t, b.binary, "machine", "ls", "--nats", b.nats.URL(), "--creds", b.nats.AdminCreds())
	if code := ls.wait(t, 5*time.Minute); code != 0 || !strings.Contains(ls.out.String(), "build1") || !strings.Contains(ls.out.String(), "ready") {
		t.Errorf("machine ls: %d, %s", code, ls.out)
	}
	for task, want := range map[string]float64{"hello": 1, "wrong": 0} {
		p := b.run(t, "--sandbox", "machine", filepath.Join(tasks, task))
		if code := p.wait(t, 5*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d", task, code)
		}
		if r := results(t, p); len(r) != 1 || r[0].Reward == nil || *r[0].Reward != want || r[0].Fault != nil || r[0].Attempt != 1 {
			t.Errorf("%s: got %+v", task, r)
		}
	}
	const sleeper = "70079"
	run := b.run(t, "--agent", "command", "--sandbox", "machine", filepath.Join(tasks, "hello"), "--", "sh", "-c", "sleep "+sleeper+"; echo 'Hello, world!' > hello.txt")
	first := newSleeper(t, "the agent", 5*time.Minute, sleeper, "")
	harness.Must(t, m.cmd.Process.Kill())
	m.wait(t, 5*time.Minute)
	m = b.machine(t, "build1", state)
	again := newSleeper(t, "the agent of the second attempt", 5*time.Minute, sleeper, first)
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(again)))
	harness.Must(t, err)
	harness.Must(t, syscall.Kill(pid, syscall.SIGTERM))
	if code := run.wait(t, 5*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, run)[0]; r.Reward == nil || *r.Reward != 1 || r.Attempt != 2 || r.Fault != nil {
		t.Errorf("got %+v", r)
	}
	harness.Eventually(t, "no records of sandboxes", 5*time.Minute, func() bool {
		left, err := os.ReadDir(filepath.Join(state, "state/local"))
		return err == nil && len(left) == 0
	})
	m.stop(t)
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the machine ends with %d", code)
	}
}
