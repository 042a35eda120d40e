package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestGRPOExample trains with the loop that examples/grpo shows: the policy learns
// the task.
func TestGRPOExample(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	state, port := t.TempDir(), strconv.Itoa(testenv.FreePort(t))
	up := start(t, testenv.Binary(t), "up", "--state", state, "--port", port, "--sandboxes", "local", "--relaxed-sync")
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool { return strings.Contains(up.err.String(), "are ready") })
	creds := filepath.Join(state, "creds", "trainer-local.nk")
	said := python(t, "examples/grpo/train.py", "--nats", "nats://127.0.0.1:"+port, "--creds", creds, "--steps", "5")
	before := numbers(t, said, `before: <Evaluation of 3 tasks: reward/mean ([0-9.]+), `)
	after := numbers(t, said, `after: <Evaluation of 3 tasks: reward/mean ([0-9.]+), `)
	if after[0] < before[0]+0.15 || strings.Count(said, "group ") != 15 {
		t.Errorf("the reward does not rise: %v to %v", before, after)
	}
}

// TestTrainingLosesNothingWithAWorker trains the policy of the example on two
// workers, of which one is killed: rewards rise, log-probs that are computed again
// are the recorded ones, and the killed worker costs no rollout. A step has 24 rollouts,
// so the reward of one step of one seed says little.
func TestTrainingLosesNothingWithAWorker(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	said := python(t, "e2e/testdata/grpo/rig.py", "--turngate", testenv.Binary(t), "--seeds", "2", "--steps", "6")
	var first, last float64
	for seed := 1; seed <= 2; seed++ {
		rewards := numbers(t, said, fmt.Sprintf(`seed %d: mean reward of each step ((?:[0-9.]+ ?){6})\n`, seed))
		first, last = first+(rewards[0]+rewards[1])/4, last+(rewards[4]+rewards[5])/4
	}
	if last < first+0.1 {
		t.Errorf("the reward does not rise: %.2f in the first two steps, %.2f in the last two", first, last)
	}
	differences := numbers(t, said, `log-probs: ([0-9]+) tokens computed again, largest difference (\S+), mean (\S+)\n`)
	if differences[0] < 1000 || differences[1] > 1e-4 || differences[2] > 1e-5 {
		t.Errorf("log-probs differ from the recorded ones: %v", differences)
	}
	weights := numbers(t, said, `weights: ([0-9]+) updates between hold and resume, ([0-9]+) rows with tokens of several versions\n`)
	if weights[0] != 2*6 || weights[1] == 0 {
		t.Errorf("no rollout saw new weights: %v", weights)
	}
	rollouts := numbers(t, said, `rollouts: ([0-9]+) groups, ([0-9]+) results, ([0-9]+) of a second attempt, ([0-9]+) without a reward, ([0-9]+) errors in rows\n`)
	if rollouts[0] != 2*6*3 || rollouts[1] != 8*rollouts[0] || rollouts[2] == 0 || rollouts[3] != 0 || rollouts[4] != 0 {
		t.Errorf("rollouts were lost, or none was taken over from the killed worker: %v", rollouts)
	}
}

// python runs a program of the repository with torch and an installed client, at
// most for five minutes, and returns its output.
func python(t *testing.T, program string, args ...string) string {
	t.Helper()
	python := installedBeside(t, testenv.Python(t, "torch"))
	root := testenv.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.FromSlash(program)}, args...)...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its processes
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "TURNGATE="+testenv.Binary(t))
	out, err := cmd.CombinedOutput()
	t.Log(string(out))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// numbers returns the numbers in the groups of a pattern.
func numbers(t *testing.T, text, pattern string) []float64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("the output has no %q", pattern)
	}
	var all []float64
	for _, word := range strings.Fields(strings.Join(found[1:], " ")) {
		value, err := strconv.ParseFloat(word, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, value)
	}
	return all
}
