package main_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
)

// TestARunningJobIsChanged: a job is paused and cancelled by other processes. It then has
// the state stopped, and its folder can be resumed.
func TestARunningJobIsChanged(t *testing.T) {
	t.Parallel()
	binary, job := testenv.Binary(t), filepath.Join(t.TempDir(), "job")
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "task/instruction.md"), "Do it.")
	writeFile(t, filepath.Join(dir, "task/solution/solve.sh"), "sleep 600\n")
	cmd := exec.Command(binary, "run", "--agent", "oracle", "--sandbox", "local", "-n", "4", "-j", "1", "--out", job, filepath.Join(dir, "task"))
	var said bytes.Buffer
	cmd.Stderr = &said
	harness.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	harness.Eventually(t, "a pause", 5*time.Minute, func() bool {
		got := turngate(t, binary, "job", "pause", job)
		return got.code == 0 && strings.HasSuffix(got.out, ": paused\n")
	})
	if got := turngate(t, binary, "job", "show", job); !strings.HasPrefix(got.out, "job job: paused, ") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "job", "resume", job); got.code != 0 || !strings.HasSuffix(got.out, ": running\n") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "job", "cancel", job); got.code != 0 || !strings.HasSuffix(got.out, ": stopped\n") {
		t.Errorf("%+v", got)
	}
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("the process does not end")
	}
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(said.String(), "the job was cancelled") || !strings.Contains(said.String(), "go on with: turngate run --resume") {
		t.Errorf("exit status %d: %s", code, said.String())
	}
	if p, results, err := jobs.Read(job); err != nil || len(results) != 0 || p.StoppedBy != jobs.ByInterrupt {
		t.Errorf("%d results, stopped by %q, %v", len(results), p.StoppedBy, err)
	}
	if got := turngate(t, binary, "job", "attach", job); got.code != 130 || !strings.Contains(got.errOut, "turngate: the job was cancelled") {
		t.Errorf("%+v", got)
	}
}
