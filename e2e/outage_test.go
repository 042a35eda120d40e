package e2e_test

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// killable is a NATS server in a process of its own.
type killable struct {
	b     *bench
	state string
	port  string
	wid   string // name of its worker
	p     *process
}

func newKillable(t *testing.T, b *bench) *killable {
	t.Helper()
	k := &killable{b: b, state: t.TempDir(), port: strconv.Itoa(testenv.FreePort(t)), wid: newWorkerName()}
	k.start(t)
	return k
}

// start starts the server, or starts it again.
func (k *killable) start(t *testing.T) {
	t.Helper()
	k.p = start(t, k.b.binary, "nats", "--state", k.state, "--port", k.port, "--workers", k.wid)
	harness.Eventually(t, "a server", 5*time.Minute, func() bool { return strings.Contains(k.p.err.String(), "NATS is ready") })
}

func (k *killable) kill(t *testing.T) {
	t.Helper()
	if err := k.p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// as starts a turngate command with the credential of a role.
func (k *killable) as(t *testing.T, role, command string, args ...string) *process {
	t.Helper()
	creds := filepath.Join(k.state, "creds", role+".nk")
	return start(t, append([]string{k.b.binary, command, "--nats", "nats://127.0.0.1:" + k.port, "--creds", creds}, args...)...)
}

// worker starts a worker with one sandbox backend and a grace period of only 1 s
// for its rollouts.
func (k *killable) worker(t *testing.T, sandbox string) *process {
	t.Helper()
	return k.as(t, "worker-"+k.wid, "worker", "--state", filepath.Join(t.TempDir(), "worker"), "--agents", k.b.cache, "--sandboxes", sandbox, "--grace", "1s")
}

// outage kills NATS while an agent does work that takes this number of seconds.
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
	harness.Eventually(t, "the agent's command", 5*time.Minute, func() bool { return len(sleepers(t, seconds)) > 0 })
	nats.kill(t)
	return nats, worker, run
}

// TestNATSIsDownForThreeMinutes stops NATS in the middle of a real agent's work.
// The sandbox must be frozen, the agent go on afterwards, and no attempt be spent.
func TestNATSIsDownForThreeMinutes(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "opencode")
	nats := newKillable(t, b)
	worker := nats.worker(t, "docker")
	run := nats.as(t, "trainer-local", "run", "-o", "json", "--agent", "opencode", "--sandbox", "docker", "--image", testenv.Image(t), slowTask(t, 19, 0))
	harness.Eventually(t, "the agent's command", 5*time.Minute, func() bool { return len(sleepers(t, "19")) > 0 })
	nats.kill(t)
	<-time.After(3 * time.Minute)
	if !strings.Contains(worker.err.String(), `"suspended":true`) {
		t.Error("the rollout was not held")
	}
	nats.start(t)
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	one(t, results(t, run), 1, 3)
}

// TestAnAgentEndsWhileNATSIsDown checks that the work of an agent that ends during
// an outage is kept, and collected and verified afterwards, and that no attempt is
// spent.
func TestAnAgentEndsWhileNATSIsDown(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	testenv.Image(t) // the test takes a minute, so it runs only where the Docker tests run
	for sandbox, seconds := range map[string]string{"docker": "21", "local": "22"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			nats, worker, run := outage(t, sandbox, seconds)
			harness.Eventually(t, "the agent's end", 5*time.Minute, func() bool { return len(sleepers(t, seconds)) == 0 })
			harness.Eventually(t, "the suspension", 5*time.Minute, func() bool { return strings.Contains(worker.err.String(), `"suspended":true`) })
			<-time.After(10 * time.Second) // the sandbox is frozen
			nats.start(t)
			if code := run.wait(t, 10*time.Minute); code != 0 {
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

// TestAWorkerStopsWhileNATSIsDown checks that a worker with a frozen sandbox,
// which answers no requests, ends all the same and leaves nothing behind.
func TestAWorkerStopsWhileNATSIsDown(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	testenv.Image(t) // see above
	for sandbox, seconds := range map[string]string{"docker": "611", "local": "612"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			_, worker, run := outage(t, sandbox, seconds)
			harness.Eventually(t, "the suspension", 5*time.Minute, func() bool { return strings.Contains(worker.err.String(), `"suspended":true`) })
			if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			stopped := time.Now()
			if code := worker.wait(t, 10*time.Minute); code != 0 {
				t.Errorf("exit status %d", code)
			}
			t.Logf("it ended after %s", time.Since(stopped).Round(time.Second))
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
