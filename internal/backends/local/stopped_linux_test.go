package local_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// createAndStop makes a sandbox and stops its own process as soon as the box
// runs. Once continued, it prints an error if the sandbox was not made.
func createAndStop(state string) int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	b := &local.Backend{Helper: exe, StateDir: state}
	for attempt := 1; ; attempt++ {
		done := make(chan error, 1)
		go func() {
			sb, err := b.Create(context.Background(), sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Attempt: attempt, Ready: 4 * time.Second})
			if err == nil {
				err = sb.Close(context.Background())
			}
			done <- err
		}()
		stopped := stopWhen(filepath.Join(state, "local", fmt.Sprintf("turngate-local.alpha-1.%d", attempt)), done)
		if err := <-done; err != nil {
			fmt.Println(err)
			return 1
		}
		if stopped {
			return 0
		}
	}
}

// stopWhen stops this process once a file exists. It returns false if done has
// a value first.
func stopWhen(file string, done <-chan error) bool {
	for len(done) == 0 {
		if _, err := os.Stat(file); err == nil {
			return syscall.Kill(os.Getpid(), syscall.SIGSTOP) == nil
		}
	}
	return false
}

// A worker that is stopped for longer than Spec.Ready gets its sandbox after it
// is continued, because neither end counts the stopped time.
func TestAWorkerThatIsStoppedLosesNoSandbox(t *testing.T) {
	testenv.Slow(t)
	b := backend(t)
	type run struct {
		cmd *exec.Cmd
		out bytes.Buffer
	}
	runs := make([]run, 8) // each may stop at a different step
	for i := range runs {
		r := &runs[i]
		r.cmd = exec.Command(b.Helper, "create", t.TempDir())
		r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
		if err := r.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	}
	for i := range runs { // until it has stopped or ended
		if err := unix.Waitid(unix.P_PID, runs[i].cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(6 * time.Second)
	for i := range runs {
		if err := runs[i].cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	for i := range runs {
		if err := runs[i].cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, runs[i].out.String())
		}
	}
}
