package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// TestWhyNoWorkerRunsIt submits a rollout that each of two workers cannot run, for
// different reasons.
func TestWhyNoWorkerRunsIt(t *testing.T) {
	p, state := newPerson(t), filepath.Join(t.TempDir(), "lab")
	p.up(t, "--state", state, "--max-memory-mb", "512")
	if got := p.turngate(t, "worker", "add", "fewcpus", "--context", "up-lab", "--keys", filepath.Join(state, "creds")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	second := p.command(t, "worker", "--context", "up-lab", "--name", "fewcpus", "--state", t.TempDir(), "--sandboxes", "local", "--max-cpus", "1", "--slots", "1")
	var log bytes.Buffer
	second.Stderr = &log
	harness.Must(t, second.Start())
	t.Cleanup(func() {
		_ = second.Process.Signal(syscall.SIGTERM)
		_ = second.Wait()
		if !strings.Contains(log.String(), "stopping: no new rollouts are taken; those that run have 30s, or until another signal") {
			t.Errorf("the worker does not say what a signal does: %s", log.String())
		}
	})
	var workers []struct{ Worker string }
	harness.Eventually(t, "two workers", 5*time.Minute, func() bool {
		harness.Must(t, json.Unmarshal([]byte(p.turngate(t, "worker", "ls", "--context", "up-lab", "-o", "json").out), &workers))
		return len(workers) == 2
	})
	var reasons []string // as the commands order them
	for _, w := range workers {
		reasons = append(reasons, w.Worker+map[bool]string{
			true:  `: sandbox.cpus: "2" is not valid: this worker offers at most 1`,
			false: `: sandbox.memory_bytes: "2147483648" is not valid: this worker offers at most 536870912`,
		}[w.Worker == "fewcpus"])
	}
	slices.Sort(reasons)
	good := task(t, map[string]string{"instruction.md": "x", "replay.yaml": done})
	run := p.command(t, "run", "--context", "up-lab", "--agent", "nop", "--cpus", "2", "--memory", "2G", "--out", filepath.Join(t.TempDir(), "job"), good)
	said, err := run.StderrPipe()
	harness.Must(t, err)
	harness.Must(t, run.Start())
	var screen strings.Builder
	id := ""
	for lines := bufio.NewScanner(said); lines.Scan(); {
		screen.WriteString(lines.Text() + "\n")
		if line := lines.Text(); id == "" && strings.HasSuffix(line, ": "+reasons[1]) && strings.HasPrefix(line, "local-") {
			id, _, _ = strings.Cut(line, " ")
			whyQueued(t, p, id, reasons...)
			harness.Must(t, run.Process.Signal(syscall.SIGINT))
		}
	}
	_ = run.Wait()
	if id == "" || !strings.Contains(screen.String(), "the job stops: its rollouts without a result are cancelled\n") || !strings.Contains(screen.String(), ": "+reasons[0]+";\n") || run.ProcessState.ExitCode() != 130 {
		t.Errorf("%d: %s", run.ProcessState.ExitCode(), screen.String())
	}
}

// whyQueued checks that the commands tell the same reasons.
func whyQueued(t *testing.T, p person, id string, reasons ...string) {
	t.Helper()
	got := p.turngate(t, "rollout", "get", "--context", "up-lab", id)
	for _, why := range reasons {
		if !strings.Contains(got.errOut, "\n"+why) {
			t.Errorf("no %q in %+v", why, got)
		}
	}
	if got.code != 0 || !strings.Contains(got.out, `"status": "queued"`) {
		t.Errorf("%+v", got)
	}
	type lane struct {
		Unfit []struct {
			Waiting int
			Needs   string
			Workers []struct{ Worker, Why string }
		}
	}
	harness.Eventually(t, "a parked request", 5*time.Minute, func() bool {
		var lanes []lane
		harness.Must(t, json.Unmarshal([]byte(p.turngate(t, "queue", "ls", "--context", "up-lab", "--trainer", "local", "-o", "json").out), &lanes))
		for _, l := range lanes {
			for _, u := range l.Unfit {
				if u.Waiting != 1 || u.Needs != "agent nop, sandbox local, 2 cpus, 2048 MiB of memory" || len(u.Workers) != 2 {
					t.Errorf("%+v", u)
					continue
				}
				for i, w := range u.Workers {
					if got := w.Worker + ": " + w.Why; got != reasons[i] {
						t.Errorf("got %q, want %q", got, reasons[i])
					}
				}
				return true
			}
		}
		return false
	})
	wide := p.turngate(t, "queue", "ls", "--context", "up-lab", "-o", "wide").out
	for _, why := range reasons {
		worker, text, _ := strings.Cut(why, ": ")
		found := false
		for line := range strings.Lines(wide) {
			found = found || strings.Contains(line, " "+worker+" ") && strings.Contains(line, text)
		}
		if !found {
			t.Errorf("no %q in\n%s", why, wide)
		}
	}
}
