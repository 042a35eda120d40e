package main_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// running is a command that runs.
type running struct {
	cmd      *exec.Cmd
	out, err harness.Buffer
	ended    chan struct{}
}

func launch(t *testing.T, binary string, args ...string) *running {
	t.Helper()
	r := &running{cmd: exec.Command(binary, args...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	harness.Must(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.cmd.Process.Kill(); <-r.ended })
	go func() { defer close(r.ended); _ = r.cmd.Wait() }()
	return r
}

func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(5 * time.Minute):
		t.Fatalf("%v does not end: %s", r.cmd.Args, r.err.String())
	}
	return r.cmd.ProcessState.ExitCode()
}
