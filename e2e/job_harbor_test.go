package e2e_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// mixedTasks writes a folder of tasks. Their trials end in every way that the layout of a job
// can record.
func mixedTasks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const separate = "artifacts = ['out.txt']\n[verifier]\nenvironment_mode = 'separate'\n"
	for name, files := range map[string]map[string]string{
		"plain":     {"tests/test.sh": leaves("test -e out.txt", `{"reward": 1}`)},
		"several":   {"tests/test.sh": leaves("", `{"reward": 0.5, "style": 1}`)},
		"headless":  {"tests/test.sh": leaves("", `{"style": 1, "speed": 0}`)}, // no number is the reward
		"silent":    {"tests/test.sh": "true\n"},
		"untested":  {},
		"separate":  {"task.toml": separate, "tests/test.sh": leaves("test -e out.txt", `{"reward": 1}`)},
		"unloaded":  {"environment/docker-compose.yaml": "services: {main: {image: x, privileged: true}}\n"},
		"cancelled": {"solution/solve.sh": "sleep 600\n", "tests/test.sh": leaves("", `{"reward": 1}`)},
		"stepped": {
			"task.toml":                "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
			"steps/one/instruction.md": "One.\n", "steps/one/tests/test.sh": leaves("", `{"reward": 1, "style": 0}`),
			"steps/two/instruction.md": "Two.\n", "steps/two/tests/test.sh": "true\n",
		},
	} {
		all := map[string]string{"instruction.md": "Do it.\n", "solution/solve.sh": "echo x > out.txt\n"}
		maps.Copy(all, files)
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(writeTask(t, all))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestHarborReadsAMixedJob checks with Harbor's own models each file of a job with
// faults, a cancelled trial, steps, a separate verifier, several rewards and none.
func TestHarborReadsAMixedJob(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local", "--slots", "3")
	at := filepath.Join(t.TempDir(), "job")
	run := b.run(t, "--agent", "oracle", "--sandbox", "local", "--retry", "no_reward=1", "--rerun-below", "2", "--out", at, mixedTasks(t))
	var id schema.ID
	harness.Eventually(t, "the trial that is cancelled", 5*time.Minute, func() bool {
		p, _, err := jobs.Read(at)
		for _, trial := range p.Trials {
			if _, serr := os.Stat(filepath.Join(at, trial.Name, "config.json")); err == nil && serr == nil && trial.Task == "cancelled" {
				id = trial.Rollout
			}
		}
		return id != ""
	})
	cancel := start(t, b.binary, "rollout", "cancel", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), string(id))
	if code := cancel.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("cancel: exit status %d: %s", code, cancel.err)
	}
	if code := run.wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	checkMixedJob(t, harborJob(t, at), 9)
	if earlier, err := filepath.Glob(filepath.Join(at, "retried", "*", "result.json")); err != nil || len(earlier) != 2 || !strings.Contains(run.err.String(), "RETRIED") || !strings.Contains(run.err.String(), "BEST REWARD") { // silent, and stepped with a reward
		t.Errorf("%q, %v: %s", earlier, err, run.err)
	}
	// The same rollouts, read from the server, make the same job.
	exported, args := filepath.Join(t.TempDir(), "exported"), []string{"export", "--format", "harbor"}
	for _, r := range results(t, run) {
		if r.Task != "unloaded" { // it was never submitted
			args = append(args, string(r.ID))
		}
	}
	b.rollout(t, 0, append(args, "--out", exported)...)
	checkMixedJob(t, harborJob(t, exported), 8)
	if _, stderr := b.rollout(t, 2, append(args, "--out", exported)...); !strings.Contains(stderr, "not empty") {
		t.Errorf("a second export: %s", stderr)
	}
}

// checkMixedJob checks the trials of mixedTasks as Harbor reads them. With 8 trials the
// task that cannot be loaded has none.
func checkMixedJob(t *testing.T, seen harborSeen, trials int) {
	t.Helper()
	errs := map[string]string{"silent": "RewardFileNotFoundError", "stepped": "RewardFileNotFoundError", "cancelled": "CancelledError"}
	if trials == 9 {
		errs["unloaded"] = "invalid"
	}
	got := map[string]map[string]float64{}
	for _, r := range seen.Rewards {
		got[r.Task] = r.Numbers
	}
	one := map[string]float64{"reward": 1}
	for what, tt := range map[string]struct{ got, want any }{
		"trials":    {seen.Trials, trials},
		"cancelled": {seen.Cancelled, 1},
		"rewards": {got, map[string]map[string]float64{
			"plain": one, "separate": one, "several": {"reward": 0.5, "style": 1}, "headless": {"style": 1, "speed": 0}, "stepped": {"reward": 1, "style": 0},
		}},
		"errors": {seen.Errors, errs},
		"mode":   {seen.Modes["separate"], "separate"},
		"steps":  {seen.Steps, map[string][]map[string]float64{"stepped": {{"reward": 1, "style": 0}, nil}}},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			a, _ := json.Marshal(tt.got)
			t.Errorf("%s: %s, want %v", what, a, tt.want)
		}
	}
}
