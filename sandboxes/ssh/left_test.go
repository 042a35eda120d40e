package ssh_test

import (
	"bufio"
	"context"
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

	"github.com/turngate/turngate/internal/harness"
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
	sb, err := b.Create(context.Background(), spec())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	c := sandboxtest.Sleeps(mark)
	c.Stdout = os.Stdout
	p, err := sb.Start(context.Background(), c)
	if err == nil {
		_, err = p.Wait()
	}
	fmt.Println(err)
	return 1
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
		groups, _ := filepath.Glob("/sys/fs/cgroup/turngate-w1-*.alpha-1.1")
		older, _ := filepath.Glob("/sys/fs/cgroup/*/turngate-w1-*.alpha-1.1")
		left = fmt.Sprint(sandboxtest.Processes(mark), sandboxtest.Processes(s.Cache), records, groups, older)
		return left == "[] [] [] [] []"
	})
}

// TestNothingIsLeft: a sandbox ends with everything in it, whichever process between
// it and the worker is killed.
func TestNothingIsLeft(t *testing.T) {
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
	for name, tt := range map[string]struct {
		end   func(*testing.T, sandboxes.Sandbox)
		says  string
		sweep bool // what a killed process cannot remove is removed by the next worker
	}{
		"closed":                   {func(t *testing.T, sb sandboxes.Sandbox) { harness.Must(t, sb.Close(t.Context())) }, "", false},
		"ssh is killed":            {killed("\x00" + s.Config + "\x00"), "ssh ended: signal: killed", false},
		"sshd is killed":           {func(t *testing.T, _ sandboxes.Sandbox) { killSessions(t, s.Pid) }, sshd.Host, false},
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
				_, err := b.Sweep(t.Context(), "w1", func(schema.ID) bool { return false })
				harness.Must(t, err)
			}
			nothingLeft(t, s, mark)
		})
	}
}

// killSessions kills the processes of sshd that serve connections.
func killSessions(t *testing.T, listener int) {
	t.Helper()
	sessions := descendants(t, listener)
	if len(sessions) == 0 {
		t.Fatal("sshd serves no connection")
	}
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
	s := sshd.Start(t)
	exe, err := os.Executable()
	harness.Must(t, err)
	mark := "killed-worker-" + strconv.Itoa(os.Getpid())
	cmd := exec.Command(exe, "work", s.Config, mark)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	harness.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err != nil || line != "up\n" {
		t.Fatalf("the worker says %q, %v", line, err)
	}
	nothingLeft(t, s, mark)
}
