package e2e_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// killable is a NATS server in a process of its own.
type killable struct {
	b     *bench
	state string
	port  string
	p     *process
}

func newKillable(t *testing.T, b *bench) *killable {
	t.Helper()
	k := &killable{b: b, state: t.TempDir(), port: strconv.Itoa(testenv.FreePort(t))}
	k.start(t)
	return k
}

// start starts the server, or starts it again.
func (k *killable) start(t *testing.T) {
	t.Helper()
	k.p = start(t, k.b.binary, "nats", "--state", k.state, "--port", k.port)
	eventually(t, "a server", time.Minute, func() bool { return strings.Contains(k.p.err.String(), "NATS is ready") })
}

func (k *killable) kill(t *testing.T) {
	t.Helper()
	if err := k.p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// as is a command that reaches the server in a role.
func (k *killable) as(t *testing.T, role, command string, args ...string) *process {
	t.Helper()
	creds := filepath.Join(k.state, "creds", role+".nk")
	return start(t, append([]string{k.b.binary, command, "--nats", "nats://127.0.0.1:" + k.port, "--creds", creds}, args...)...)
}

// worker is a worker with one kind of sandbox, which gives rollouts no time
// when it is to stop.
func (k *killable) worker(t *testing.T, sandbox string) *process {
	t.Helper()
	return k.as(t, "worker", "worker", "--state", filepath.Join(t.TempDir(), "worker"), "--agents", k.b.cache, "--sandboxes", sandbox, "--grace", "1s")
}

// outage kills NATS in the middle of an agent's work that takes so many seconds.
func outage(t *testing.T, sandbox, seconds string) (nats *killable, worker, run *process) {
	t.Helper()
	task := copyTask(t, "examples/tasks/hello", map[string]string{
		"solution/solve.sh": "#!/bin/sh\nsleep " + seconds + "\necho 'Hello, world!' > hello.txt\nmkdir -p /logs/agent\necho worked > /logs/agent/own.log\n",
	})
	args := []string{"-o", "json", "--agent", "oracle", "--sandbox", sandbox, task}
	if sandbox == "docker" {
		args = append(args, "--image", testenv.Image(t))
	}
	nats = newKillable(t, newBench(t))
	worker = nats.worker(t, sandbox)
	run = nats.as(t, "trainer-local", "run", args...)
	eventually(t, "the agent's command", 3*time.Minute, func() bool { return len(sleepers(t, seconds)) > 0 })
	nats.kill(t)
	return nats, worker, run
}

// TestNATSIsDownForThreeMinutes in the middle of a real agent's work: the
// sandbox is frozen, the agent goes on afterwards, no attempt is spent.
func TestNATSIsDownForThreeMinutes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "opencode")
	nats := newKillable(t, b)
	worker := nats.worker(t, "docker")
	run := nats.as(t, "trainer-local", "run", "-o", "json", "--agent", "opencode", "--sandbox", "docker", "--image", testenv.Image(t), slowTask(t, 19, 0))
	eventually(t, "the agent's command", 5*time.Minute, func() bool { return len(sleepers(t, "19")) > 0 })
	nats.kill(t)
	<-time.After(3 * time.Minute)
	if !strings.Contains(worker.err.String(), `"held":true`) {
		t.Error("the rollout was not held")
	}
	nats.start(t)
	if code := run.wait(t, 5*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	one(t, results(t, run), 1, 3)
}

// TestAnAgentEndsWhileNATSIsDown: what it left waits, is read once the sandbox
// goes on, and verified. No attempt is spent.
func TestAnAgentEndsWhileNATSIsDown(t *testing.T) {
	t.Parallel()
	testenv.Image(t) // it takes a minute, which goes with what else needs Docker
	for sandbox, seconds := range map[string]string{"docker": "21", "local": "22"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			nats, worker, run := outage(t, sandbox, seconds)
			eventually(t, "the agent's end", time.Minute, func() bool { return len(sleepers(t, seconds)) == 0 })
			eventually(t, "the hold", time.Minute, func() bool { return strings.Contains(worker.err.String(), `"held":true`) })
			<-time.After(10 * time.Second) // everything stands still
			nats.start(t)
			if code := run.wait(t, 2*time.Minute); code != 0 {
				t.Fatalf("exit status %d: %s", code, run.err)
			}
			r := one(t, results(t, run), 1, 0)
			var names []string
			for _, a := range r.Artifacts {
				names = append(names, a.Name)
			}
			if !strings.Contains(strings.Join(names, " "), "logs/agent.tar") {
				t.Errorf("what the agent left is not among %q", names)
			}
		})
	}
}

// TestAWorkerStopsWhileNATSIsDown, with a sandbox that is frozen and answers
// nobody: it ends all the same, and leaves nothing.
func TestAWorkerStopsWhileNATSIsDown(t *testing.T) {
	t.Parallel()
	testenv.Image(t) // see above
	for sandbox, seconds := range map[string]string{"docker": "611", "local": "612"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			_, worker, run := outage(t, sandbox, seconds)
			eventually(t, "the hold", time.Minute, func() bool { return strings.Contains(worker.err.String(), `"held":true`) })
			if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			told := time.Now()
			if code := worker.wait(t, 2*time.Minute); code != 0 {
				t.Errorf("exit status %d", code)
			}
			t.Logf("it ended after %s", time.Since(told).Round(time.Second))
			if left := sleepers(t, seconds); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
			id := regexp.MustCompile(`local-[A-Z0-9]+-0`).FindString(worker.err.String())
			if id == "" {
				t.Error("the worker named no rollout")
			}
			nothingLeft(t, sandbox, schema.ID(id))
			run.stop(t)
		})
	}
}
