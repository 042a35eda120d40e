package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/worker"
)

// TestAKilledWorkerLeavesNoSideCar kills a worker in the middle of a task with
// a side-car. After a restart the worker removes the old containers and runs the task
// anew.
func TestAKilledWorkerLeavesNoSideCar(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	image := testenv.Image(t)
	task := writeTask(t, map[string]string{
		"instruction.md": "x", "tests/test.sh": "#!/bin/bash\ntest -s /state/up && echo 1 > /logs/verifier/reward.txt\n",
		"replay.yaml": "steps:\n- run: sleep 29 # of the side-car's task\n- text: Done.\n",
		"environment/docker-compose.yaml": "services:\n  main: {image: '" + image + "', depends_on: [db], volumes: ['state:/state']}\n" +
			"  db: {image: '" + image + "', command: [sh, -c, 'echo up > /state/up; sleep 1000'], volumes: ['state:/state']}\nvolumes: {state: {}}\n",
	})
	state := filepath.Join(t.TempDir(), "state")
	first := b.worker(t, "", "--sandboxes", "docker", "--state", state)
	run := b.run(t, "--agent", "mini", "--sandbox", "docker", task)
	left := func(kind ...string) []string {
		owner, err := worker.OwnerOf(workerName(t, state), state)
		harness.Must(t, err)
		out, err := exec.Command("docker", append(kind, "-q", "--filter", "label=turngate.owner="+owner)...).Output()
		if err != nil {
			t.Fatalf("docker %v: %v", kind, err)
		}
		return strings.Fields(string(out))
	}
	harness.Eventually(t, "the agent beside its side-car", 5*time.Minute, func() bool {
		return len(left("ps")) == 2 && strings.Contains(run.err.String(), "call 1")
	})
	before := left("ps", "-a")
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.done
	second := b.worker(t, "", "--sandboxes", "docker", "--state", state)
	harness.Eventually(t, "the end of the killed worker's containers", 5*time.Minute, func() bool {
		return !slices.ContainsFunc(before, func(id string) bool { return exec.Command("docker", "inspect", id).Run() == nil })
	})
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, run)[0]; r.Reward == nil || *r.Reward != 1 || r.Fault != nil || r.Attempt != 2 {
		t.Errorf("got %+v", r)
	}
	second.stop(t)
	for _, kind := range [][]string{{"ps", "-a"}, {"network", "ls"}, {"volume", "ls"}} {
		if ids := left(kind...); len(ids) > 0 {
			t.Errorf("docker %v: %v are left", kind, ids)
		}
	}
}

// workerName is the name that a worker has chosen for itself.
func workerName(t *testing.T, state string) string {
	t.Helper()
	name, err := os.ReadFile(filepath.Join(state, "worker.id"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}
