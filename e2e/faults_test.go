package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAKilledWorkerLeavesNothing kills a worker while an agent works. The box
// loses its connection to the worker and ends everything, including the container.
func TestAKilledWorkerLeavesNothing(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"docker", "local"} {
		t.Run(sandbox, func(t *testing.T) {
			b := newBench(t)
			b.need(t, sandbox, "command")
			state := filepath.Join(t.TempDir(), "state")
			w := b.worker(t, "", "--sandboxes", sandbox, "--state", state)
			const sleeper = "70071"
			args := []string{"--agent", "command", "--sandbox", sandbox}
			if sandbox == "docker" {
				args = append(args, "--image", testenv.Image(t))
			}
			script := "setsid sleep " + sleeper + " & trap '' TERM; sleep " + sleeper
			run := b.run(t, append(args, filepath.Join(testenv.Root(t), "examples/tasks/hello"), "--", "sh", "-c", script)...)
			harness.Eventually(t, "the agent", 5*time.Minute, func() bool { return len(sleepers(t, sleeper)) == 2 })
			if err := w.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the end of everything", 5*time.Minute, func() bool {
				if len(sleepers(t, sleeper)) > 0 {
					return false
				}
				if sandbox != "docker" {
					return true
				}
				out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=turngate.owner="+workerName(t, state)).Output()
				return err == nil && strings.TrimSpace(string(out)) == ""
			})
			run.stop(t)
			<-w.done
			b.worker(t, "", "--sandboxes", sandbox, "--state", state) // its next process removes the empty cgroups
			awaitNoCgroups(t, state)
		})
	}
}

// awaitNoCgroups waits until no cgroup of the worker with this state folder is left.
func awaitNoCgroups(t *testing.T, state string) {
	t.Helper()
	harness.Eventually(t, "the end of the cgroups", 5*time.Minute, func() bool {
		left, err := filepath.Glob("/sys/fs/cgroup/*/turngate-" + workerName(t, state) + "-*")
		return err == nil && len(left) == 0
	})
}

// sleepers lists the processes of sleep with this duration, in all namespaces.
func sleepers(t *testing.T, seconds string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && string(data) == "sleep\x00"+seconds+"\x00" {
			out = append(out, f)
		}
	}
	return out
}

// newSleeper waits for the only process of sleep with this duration, unless before names it. It
// returns the file of its argv; before is such a file, too.
func newSleeper(t *testing.T, what string, within time.Duration, seconds, before string) string {
	t.Helper()
	var now []string
	harness.Eventually(t, what, within, func() bool {
		now = sleepers(t, seconds)
		return len(now) == 1 && now[0] != before
	})
	return now[0]
}

// TestLocalRefusesWithoutNamespaces disables user namespaces and checks that the
// local sandbox reports it before anything starts.
func TestLocalRefusesWithoutNamespaces(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for name, first := range map[string]string{
		"with all capabilities": "",
		"as in a container":     "setpriv --inh-caps=-all --bounding-set=-sys_admin,-net_admin,-net_raw",
	} {
		t.Run(name, func(t *testing.T) {
			script := `echo 0 > /proc/sys/user/max_user_namespaces && exec ` + first + ` "$@"`
			p := start(t, "unshare", "--user", "--map-root-user", "/bin/sh", "-c", script, "sh", binary, "run", task)
			if code := p.wait(t, 10*time.Minute); code != 1 || p.out.String() != "" || !strings.Contains(p.err.String(), "user.max_user_namespaces") || !strings.Contains(p.err.String(), "docker") {
				t.Fatalf("exit status %d: %s%s", code, p.out, p.err)
			}
		})
	}
}

// TestAMissingImage checks that the result names a missing image.
func TestAMissingImage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "mini")
	b.worker(t, "", "--sandboxes", "docker")
	p := b.run(t, "--sandbox", "docker", "--image", "127.0.0.1:9/turngate-no-such-image:1", filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	if code := p.wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("exit status %d", code)
	}
	r := results(t, p)[0]
	if r.Status != schema.StatusFailed || r.Fault.Code != schema.CodeImage || !strings.Contains(r.Fault.Message, "127.0.0.1:9/turngate-no-such-image:1") || r.Reward != nil {
		t.Fatalf("got %+v", r.Fault)
	}
}

// TestInterruptEndsARun checks that Ctrl-C leaves no process and no folder.
func TestInterruptEndsARun(t *testing.T) {
	testenv.Slow(t)
	binary := testenv.Binary(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	const sleeper = "70072"
	p := start(t, binary, "run", "--agent", "command", filepath.Join(testenv.Root(t), "examples/tasks/hello"), "--", "sleep", sleeper)
	harness.Eventually(t, "the agent", 5*time.Minute, func() bool { return len(sleepers(t, sleeper)) == 1 })
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t, 10*time.Minute); code != 130 {
		t.Errorf("exit status %d: %s", code, p.err)
	}
	if left := sleepers(t, sleeper); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	// The folder of the user's sandboxes stays, with a lock alone.
	root := filepath.Join(temp, fmt.Sprintf("turngate-%d", os.Geteuid()))
	for _, pattern := range []string{filepath.Join(temp, "turngate-*"), filepath.Join(root, "*")} {
		left, err := filepath.Glob(pattern)
		harness.Must(t, err)
		left = slices.DeleteFunc(left, func(name string) bool { return name == root || name == filepath.Join(root, "lock") })
		if len(left) > 0 {
			t.Errorf("folders are left: %v", left)
		}
	}
}

// TestCancelEndsAnAgentThatWillNot cancels an agent that ignores signals.
func TestCancelEndsAnAgentThatWillNot(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	const sleeper = "70073"
	run := b.run(t, "--agent", "command", filepath.Join(testenv.Root(t), "examples/tasks/hello"), "--", "sh", "-c", "trap '' TERM INT; while true; do sleep "+sleeper+"; done")
	harness.Eventually(t, "the agent", 5*time.Minute, func() bool { return len(sleepers(t, sleeper)) == 1 })
	if err := run.cmd.Process.Signal(os.Interrupt); err != nil { // it cancels its rollouts
		t.Fatal(err)
	}
	start := time.Now()
	harness.Eventually(t, "its end", 5*time.Minute, func() bool { return len(sleepers(t, sleeper)) == 0 })
	t.Logf("ended %s after the cancel", time.Since(start).Round(10*time.Millisecond))
	run.wait(t, 10*time.Minute)
}
