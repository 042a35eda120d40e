package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/sshd"
)

// TestRolloutsOverSSH runs tasks on another host: a task that the agent solves, and
// one that it does not.
func TestRolloutsOverSSH(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := sshd.Start(t)
	binary, tasks := testenv.Binary(t), filepath.Join(testenv.Root(t), "examples/tasks")
	doctor := start(t, append([]string{binary, "doctor"}, s.Flags()...)...)
	_ = doctor.wait(t, 10*time.Minute) // other lines may tell a problem
	if !strings.Contains(doctor.out.String(), "ok       ssh sandbox      namespaces work on each host") {
		t.Fatalf("doctor: %s", doctor.out)
	}
	for task, want := range map[string]float64{"hello": 1, "wrong": 0} {
		p := start(t, append([]string{binary, "run", "-o", "json", "--sandbox", "ssh", filepath.Join(tasks, task)}, s.Flags()...)...)
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d", task, code)
		}
		r := results(t, p)
		if len(r) != 1 || r[0].Reward == nil || *r[0].Reward != want || r[0].Fault != nil {
			t.Errorf("%s: got %+v", task, r)
		}
	}
	harness.Eventually(t, "no records of sandboxes", 5*time.Minute, func() bool {
		left, err := filepath.Glob(filepath.Join(s.Cache, "turngate/ssh/state/local/*"))
		return err == nil && len(left) == 0
	})
}

// TestABrokenConnectionCostsNothing kills ssh while an agent works: the agent works on. Then it
// kills turngate on the other host: the rollout runs again, and the agent of the first attempt
// is gone.
func TestABrokenConnectionCostsNothing(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := sshd.Start(t)
	b := newBench(t)
	state := filepath.Join(t.TempDir(), "state")
	flags := append([]string{"--sandboxes", "ssh", "--state", state}, s.Flags()...)
	w := b.worker(t, "", flags...)
	const sleeper = "70075"
	run := b.run(t, "--agent", "command", "--sandbox", "ssh", filepath.Join(testenv.Root(t), "examples/tasks/hello"),
		"--", "sh", "-c", "sleep "+sleeper+"; echo 'Hello, world!' > hello.txt")
	first := newSleeper(t, "the agent", 5*time.Minute, sleeper, "")
	broken := clientsOf(t, s)
	signalTo(t, broken[0], syscall.SIGKILL)
	harness.Eventually(t, "another connection", 5*time.Minute, func() bool {
		now := clientsOf(t, s)
		return len(now) == 1 && now[0] != broken[0]
	})
	signalTo(t, first, 0)
	signalTo(t, farOf(t, s), syscall.SIGKILL)
	second := newSleeper(t, "the agent of the second attempt", 5*time.Minute, sleeper, first)
	signalTo(t, second, syscall.SIGTERM)
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, run)[0]; r.Reward == nil || *r.Reward != 1 || r.Attempt != 2 || r.Fault != nil {
		t.Errorf("got %+v", r)
	}
	w.stop(t)
	b.worker(t, "", flags...) // its next process removes the cgroup of the killed one
	awaitNoCgroups(t, state)
}

// signalTo sends a signal to the process with this file of its argv.
func signalTo(t *testing.T, file string, signal syscall.Signal) {
	t.Helper()
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
	harness.Must(t, err)
	harness.Must(t, syscall.Kill(pid, signal))
}

// clientsOf returns the files of the argv of each ssh to a server.
func clientsOf(t *testing.T, s *sshd.Server) []string {
	t.Helper()
	client, err := exec.LookPath("ssh")
	harness.Must(t, err)
	return processesWith(t, func(argv string) bool {
		return strings.HasPrefix(argv, client+"\x00") && strings.Contains(argv, "\x00"+s.Config+"\x00")
	})
}

// farOf returns the file of the argv of the turngate that keeps the only sandbox on a server.
func farOf(t *testing.T, s *sshd.Server) string {
	t.Helper()
	found := processesWith(t, func(argv string) bool { return strings.Contains(argv, "\x00"+far.Command+"\x00"+s.Cache) })
	if len(found) != 1 {
		t.Fatalf("the processes %v", found)
	}
	return found[0]
}

func processesWith(t *testing.T, ok func(argv string) bool) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	harness.Must(t, err)
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && ok(string(data)) {
			found = append(found, f)
		}
	}
	return found
}
