package ssh_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/ssh"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// work is a worker with one sandbox, until it is killed.
func work(config, mark string) int {
	b, err := newBackend(sandboxes.SSH{Hosts: []string{sshd.Host}, Config: config})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	impatient(b)
	fmt.Println(sandboxtest.Work(b, spec(), mark))
	return 1
}

// impatient lets a backend give a line up after seconds.
func impatient(b sandboxes.Backend) {
	b.(*ssh.Backend).SetTiming(line.Timing{Beat: time.Second, Silence: 5 * time.Second})
}

// nothingLeft waits until no process, record or cgroup of a sandbox is left.
func nothingLeft(t *testing.T, s *sshd.Server, mark string) {
	t.Helper()
	left := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("processes, records and cgroups: %s", left)
		}
	})
	harness.Eventually(t, "nothing is left", 5*time.Minute, func() bool {
		records, _ := filepath.Glob(filepath.Join(s.Cache, "turngate/ssh/state/local/*"))
		groups, _ := filepath.Glob("/sys/fs/cgroup/turngate-ssh.ssh-1.1")
		older, _ := filepath.Glob("/sys/fs/cgroup/*/turngate-ssh.ssh-1.1")
		left = fmt.Sprint(sandboxtest.Processes(mark), sandboxtest.Processes(s.Cache), records, groups, older)
		return left == "[] [] [] [] []"
	})
}

// TestNothingIsLeft: a sandbox ends with everything in it if its host is away for too long,
// or if turngate there is killed.
func TestNothingIsLeft(t *testing.T) {
	testenv.Slow(t)
	s := sshd.Start(t)
	killed := func(find string) func(*testing.T, sandboxes.Sandbox) {
		return func(t *testing.T, _ sandboxes.Sandbox) {
			pids := sandboxtest.Processes(find)
			if len(pids) != 1 {
				t.Fatalf("%q: the processes %v", find, pids)
			}
			harness.Must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		}
	}
	b := backend(t, s.Config, sshd.Host)
	impatient(b)
	for name, tt := range map[string]struct {
		end   func(*testing.T, sandboxes.Sandbox)
		says  string
		sweep bool // the next worker removes the remains of a killed process
	}{
		"closed":                   {func(t *testing.T, sb sandboxes.Sandbox) { harness.Must(t, sb.Close(t.Context())) }, "", false},
		"the host is away":         {func(t *testing.T, _ sandboxes.Sandbox) { away(t, s) }, "nothing was heard for 5s", false},
		"the far turngate is gone": {killed("turngate/ssh/turngate-"), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			mark := strings.ReplaceAll(name, " ", "-") + "-" + strconv.Itoa(os.Getpid())
			sb := sandboxtest.Create(t, b, spec())
			c := sandboxtest.Sleeps(mark)
			out, in, err := os.Pipe()
			harness.Must(t, err)
			defer out.Close()
			c.Stdout = in
			p, err := sb.Start(t.Context(), c)
			harness.Must(t, err)
			_, err = bufio.NewReader(out).ReadString('\n')
			harness.Must(t, err)
			tt.end(t, sb)
			if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the process ends with %v", err)
			}
			in.Close()
			if tt.sweep {
				_, err := b.Sweep(t.Context(), "ssh", func(schema.ID) bool { return false })
				harness.Must(t, err)
			}
			nothingLeft(t, s, mark)
		})
	}
}

// away makes a server refuse its clients from now on until the test ends.
func away(t *testing.T, s *sshd.Server) {
	t.Helper()
	path := s.Config + ".away"
	harness.Must(t, os.Rename(s.Config, path))
	t.Cleanup(func() { harness.Must(t, os.Rename(path, s.Config)) })
	killSessions(t, s.Pid)
}

// TestABrokenConnectionCostsNothing: no byte is lost and nothing runs twice.
func TestABrokenConnectionCostsNothing(t *testing.T) {
	testenv.Slow(t)
	s := sshd.Start(t)
	sb := sandboxtest.Create(t, backend(t, s.Config, sshd.Host), spec())
	killSSH := func() {
		for _, pid := range sandboxtest.Processes("\x00" + s.Config + "\x00") {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	killServer := func() { killSessions(t, s.Pid) }
	sandboxtest.GoesOn(t, sb, killServer, killSSH, killServer, killSSH)
	harness.Must(t, sb.Close(t.Context()))
}

// killSessions kills the processes of sshd that serve connections.
func killSessions(t *testing.T, listener int) {
	t.Helper()
	var sessions []int
	harness.Eventually(t, "a connection", 5*time.Minute, func() bool {
		sessions = descendants(t, listener)
		return len(sessions) > 0
	})
	for _, pid := range sessions {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may end with its parent
	}
}

// descendants returns the processes of sshd below one of them.
func descendants(t *testing.T, pid int) (all []int) {
	t.Helper()
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, field := range strings.Fields(string(data)) {
		child, err := strconv.Atoi(field)
		harness.Must(t, err)
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); err == nil && strings.HasPrefix(string(name), "sshd") {
			all = append(append(all, child), descendants(t, child)...)
		}
	}
	return all
}

func TestAKilledWorkerLeavesNothing(t *testing.T) {
	testenv.Slow(t)
	s := sshd.Start(t)
	exe, err := os.Executable()
	harness.Must(t, err)
	mark := "killed-worker-" + strconv.Itoa(os.Getpid())
	cmd := exec.Command(exe, "work", s.Config, mark)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	text, err := bufio.NewReader(out).ReadString('\n')
	harness.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err != nil || text != "up\n" {
		t.Fatalf("the worker says %q, %v", text, err)
	}
	nothingLeft(t, s, mark)
}
