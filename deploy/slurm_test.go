package deploy_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestSlurm runs the job script with the variables of Slurm. Its worker runs a rollout,
// lets it end after SIGTERM, and leaves nothing.
func TestSlurm(t *testing.T) {
	binary, srv := testenv.Binary(t), testenv.StartNATS(t, "local")
	files, node := t.TempDir(), t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		harness.Must(t, os.WriteFile(filepath.Join(files, name), []byte(text), mode))
	}
	seed, err := os.ReadFile(srv.AdmitWorker(t, "pool-3"))
	harness.Must(t, err)
	write("worker-pool-3.nk", string(seed), 0o600)
	write("worker.env", "TURNGATE_NATS="+srv.URL()+"\nTURNGATE="+binary+"\nTURNGATE_GRACE=10m\n", 0o600)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var said harness.Buffer
	job := slurmJob(ctx, t, node, files)
	job.Stderr = &said
	harness.Must(t, job.Start())
	ended := make(chan error, 1)
	go func() { ended <- job.Wait() }()
	stop := func() error {
		_ = job.Process.Signal(syscall.SIGTERM)
		return <-ended
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", said.String())
		}
	})

	rollout := exec.CommandContext(ctx, binary, "run", "--nats", srv.URL(), "--creds", srv.TrainerCreds("local"), "--agent", "command", "-o", "json", "--out", filepath.Join(t.TempDir(), "job"),
		filepath.Join(testenv.Root(t), "examples", "tasks", "hello"), "--", "sh", "-c", "sleep 1; echo 'Hello, world!' > hello.txt")
	var out, log harness.Buffer
	rollout.Stdout, rollout.Stderr = &out, &log
	harness.Must(t, rollout.Start())
	harness.Eventually(t, "a rollout that runs", 3*time.Minute, func() bool { return strings.Contains(said.String(), "rollout begins") })
	if err := stop(); err != nil {
		t.Errorf("the job: %v", err)
	}
	if err := rollout.Wait(); err != nil {
		t.Errorf("turngate run: %v\n%s", err, log.String())
	}
	var results []schema.Result
	harness.Must(t, json.Unmarshal([]byte(out.String()), &results))
	if len(results) != 1 || results[0].Reward == nil || *results[0].Reward != 1 || results[0].Worker != "pool-3" {
		t.Errorf("got %s", out.String())
	}
	if !strings.Contains(said.String(), `"slots":"5"`) { // (4096 - 1536) / 512
		t.Errorf("of 2 CPUs and 4 GB the worker has other slots than 5:\n%s", said.String())
	}
	left, err := os.ReadDir(node)
	if err != nil || len(left) > 0 {
		t.Errorf("the job left %v (%v)", left, err)
	}
}

// TestSlurmIsStoppedEarly: a signal before the worker starts ends the job in an orderly way.
func TestSlurmIsStoppedEarly(t *testing.T) {
	files, node := t.TempDir(), t.TempDir()
	started := filepath.Join(files, "started")
	harness.Must(t, os.WriteFile(filepath.Join(files, "worker-pool-3.nk"), nil, 0o600))
	harness.Must(t, os.WriteFile(filepath.Join(files, "program"), []byte("#!/bin/sh\n: >"+started+"\n"), 0o700)) //nolint:gosec // it is a program
	harness.Must(t, os.WriteFile(filepath.Join(files, "worker.env"), []byte("TURNGATE="+filepath.Join(files, "program")+"\nkill -TERM $$\n"), 0o600))
	if out, err := slurmJob(t.Context(), t, node, files).CombinedOutput(); err != nil {
		t.Errorf("got %v, %s", err, out)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("a worker was started")
	}
	if left, err := os.ReadDir(node); err != nil || len(left) > 0 {
		t.Errorf("the job left %v (%v)", left, err)
	}
}

// TestSlurmRefuses starts the job script with files that it cannot use.
func TestSlurmRefuses(t *testing.T) {
	files := t.TempDir()
	env, creds := filepath.Join(files, "worker.env"), filepath.Join(files, "worker-pool-3.nk")
	refused := func(want string, env ...string) {
		t.Helper()
		job := slurmJob(t.Context(), t, t.TempDir(), files)
		job.Env = append(job.Env, env...)
		out, err := job.CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("got %v, %s; want %q", err, out, want)
		}
	}
	refused("there is no file " + env)
	harness.Must(t, os.WriteFile(env, []byte("TURNGATE=true\n"), 0o600))
	refused("there is no file " + creds + ": make it with turngate worker add pool-3")
	harness.Must(t, os.WriteFile(creds, nil, 0o600))
	harness.Must(t, os.Chmod(creds, 0o640)) //nolint:gosec // it is refused
	refused("chmod 600 " + files + "/*")
	refused("sbatch --array", "SLURM_ARRAY_TASK_ID=")
}

// slurmJob is the job script as task 3 of the job pool, with the node's disk in node.
func slurmJob(ctx context.Context, t *testing.T, node, files string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(testenv.Root(t), "deploy", "slurm", "worker.sbatch"), files)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that its worker ends, too
	cmd.Env = append(os.Environ(), "SLURM_JOB_NAME=pool", "SLURM_JOB_ID=7", "SLURM_ARRAY_TASK_ID=3", "SLURM_CPUS_ON_NODE=2", "SLURM_MEM_PER_NODE=4096", "TMPDIR="+node)
	return cmd
}
