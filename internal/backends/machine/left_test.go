package machine_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// nothingLeft waits until no process, record or cgroup of a sandbox is left.
func nothingLeft(t *testing.T, state, mark string) {
	t.Helper()
	left := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("processes, records and cgroups: %s", left)
		}
	})
	harness.Eventually(t, "nothing is left", 5*time.Minute, func() bool {
		records, _ := filepath.Glob(filepath.Join(state, "state/local/*"))
		groups, _ := filepath.Glob("/sys/fs/cgroup/turngate-" + mark + ".*")
		older, _ := filepath.Glob("/sys/fs/cgroup/*/turngate-" + mark + ".*")
		left = fmt.Sprint(sandboxtest.Processes(mark), sandboxtest.Processes(far.Command+"\x00"+state), records, groups, older)
		return left == "[] [] [] [] []"
	})
}

// other starts this program in a role and waits for its first line, if it has one.
func other(t *testing.T, says string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	harness.Must(t, err)
	cmd := exec.Command(exe, args...)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if says != "" {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != says+"\n" {
			t.Fatalf("%v says %q, %v", args, line, err)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return cmd
}

// TestNothingIsLeft: a sandbox ends with everything in it, however it ends. After the
// death of the machine another one makes the second sandbox.
func TestNothingIsLeft(t *testing.T) {
	testenv.Slow(t)
	w := newWorld(t, timing())
	for name, tt := range map[string]struct {
		end   func(t *testing.T, sb sandboxes.Sandbox, machine *exec.Cmd, state string)
		sweep bool // the next worker removes the remains of a killed process
	}{
		"closed": {func(t *testing.T, sb sandboxes.Sandbox, _ *exec.Cmd, _ string) {
			harness.Must(t, sb.Close(t.Context()))
		}, false},
		"machine-killed": {func(t *testing.T, _ sandboxes.Sandbox, machine *exec.Cmd, _ string) {
			harness.Must(t, machine.Process.Kill())
		}, false},
		"server-killed": {func(t *testing.T, _ sandboxes.Sandbox, _ *exec.Cmd, state string) {
			pids := sandboxtest.Processes(far.Command + "\x00" + state)
			if len(pids) != 1 {
				t.Fatalf("the processes %v", pids)
			}
			harness.Must(t, syscall.Kill(pids[0], syscall.SIGKILL))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			mark, state := name+"-"+strconv.Itoa(os.Getpid()), t.TempDir()
			machine := other(t, "", "machine", w.nats.URL(), w.admit(t, name), name, state)
			b := w.backend(t, name)
			s := spec()
			s.Owner = mark
			sb := sandboxtest.Create(t, b, s)
			c := sandboxtest.Sleeps(mark)
			out, in, err := os.Pipe()
			harness.Must(t, err)
			defer out.Close()
			c.Stdout = in
			p, err := sb.Start(t.Context(), c)
			harness.Must(t, err)
			_, err = bufio.NewReader(out).ReadString('\n')
			harness.Must(t, err)
			tt.end(t, sb, machine, state)
			if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) {
				t.Errorf("the process ends with %v", err)
			}
			in.Close()
			if tt.sweep {
				_, err := b.Sweep(t.Context(), mark, func(schema.ID) bool { return false })
				harness.Must(t, err)
			}
			nothingLeft(t, state, mark)
		})
	}
}

// TestAKilledWorkerLeavesNothing: the machine notices that the worker is silent.
func TestAKilledWorkerLeavesNothing(t *testing.T) {
	testenv.Slow(t)
	w := newWorld(t, timing())
	mark, state := "killed-worker-"+strconv.Itoa(os.Getpid()), t.TempDir()
	other(t, "", "machine", w.nats.URL(), w.admit(t, "m1"), "m1", state)
	worker := other(t, "up", "work", w.nats.URL(), w.nats.AdmitWorker(t, "w1"), mark)
	harness.Must(t, worker.Process.Kill())
	nothingLeft(t, state, mark)
}
