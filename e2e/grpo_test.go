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

	"github.com/turngate/turngate/internal/testenv"
)

// TestGRPOExample trains with the example: rewards rise, log-probs that are
// computed again are the recorded ones, and a killed worker costs no rollout.
func TestGRPOExample(t *testing.T) {
	t.Parallel()
	said := trainGRPO(t, "--seeds", "2", "--steps", "5")
	for seed := 1; seed <= 2; seed++ {
		rewards := numbers(t, said, fmt.Sprintf(`seed %d: mean reward of each step ((?:[0-9.]+ ?){5})\n`, seed))
		if last := (rewards[3] + rewards[4]) / 2; last < rewards[0]+0.15 {
			t.Errorf("seed %d: the reward does not rise: %v", seed, rewards)
		}
	}
	differences := numbers(t, said, `log-probs: ([0-9]+) tokens computed again, largest difference (\S+), mean (\S+)\n`)
	if differences[0] < 1000 || differences[1] > 1e-4 || differences[2] > 1e-5 {
		t.Errorf("log-probs differ from the recorded ones: %v", differences)
	}
	weights := numbers(t, said, `weights: ([0-9]+) updates between hold and resume, ([0-9]+) rows with tokens of several versions\n`)
	if weights[0] != 10 || weights[1] == 0 {
		t.Errorf("no rollout saw new weights: %v", weights)
	}
	rollouts := numbers(t, said, `rollouts: ([0-9]+) submitted, ([0-9]+) results, ([0-9]+) of a second attempt, ([0-9]+) without a reward, ([0-9]+) errors in rows\n`)
	if rollouts[0] != 2*5*3*8 || rollouts[1] != rollouts[0] || rollouts[2] == 0 || rollouts[3] != 0 || rollouts[4] != 0 {
		t.Errorf("rollouts were lost, or none was taken over from the killed worker: %v", rollouts)
	}
}

// TestGRPOExampleOfFewSteps: a worker is killed only at a step that submits, when it
// will be busy.
func TestGRPOExampleOfFewSteps(t *testing.T) {
	said := trainGRPO(t, "--seeds", "1", "--steps", "2")
	rollouts := numbers(t, said, `rollouts: ([0-9]+) submitted, ([0-9]+) results, `)
	if rollouts[0] != 2*3*8 || rollouts[1] != rollouts[0] || strings.Contains(said, "was killed") {
		t.Errorf("rollouts %v, or a worker was killed", rollouts)
	}
}

// trainGRPO runs the example with an installed client, at most for the five minutes
// that it promises, and returns its output.
func trainGRPO(t *testing.T, args ...string) string {
	t.Helper()
	python := installedBeside(t, testenv.Python(t, "torch"))
	root := testenv.Root(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{filepath.Join("examples", "grpo", "train.py"), "--turngate", testenv.Binary(t)}, args...)...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it ends its processes
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
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
