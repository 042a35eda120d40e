package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
)

// regradeSeen is the output of `turngate job regrade -o json`.
type regradeSeen struct {
	Job      string
	Regraded []struct {
		Trial    string
		Old, New *float64
		Fault    *struct{ Message string }
	}
	LeftOut []struct{ Trial, Reason string } `json:"left_out"`
}

// regrade runs the command and returns its status, its report and its log.
func (b *bench) regrade(t *testing.T, args ...string) (code int, seen regradeSeen, log string) {
	t.Helper()
	p := start(t, append([]string{b.binary, "job", "regrade", "-o", "json"}, args...)...)
	code = p.wait(t, 10*time.Minute)
	if out := p.out.String(); out != "" {
		if err := json.Unmarshal([]byte(out), &seen); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return code, seen, p.err.String()
}

// digestOf returns the digest of all files of a folder.
func digestOf(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("bash", "-c", `cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum`, "bash", dir).Output()
	harness.Must(t, err)
	return string(out)
}

// TestARolloutIsVerifiedAgain: the verifier gets the same files as before, and none that
// the agent did not leave; its new tests decide. Harbor reads both jobs.
func TestARolloutIsVerifiedAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	script := "steps:\n- run: \"mkdir -p 'an out' && echo hi > 'an out/a.txt' && printf '#!/bin/sh\\necho ran\\n' > run && chmod 755 run 'an out/a.txt' && rm -f given.txt\"\n- text: Done.\n"
	pass := "#!/bin/sh\nset -x\ntest \"$(./run)\" = ran && test -x 'an out/a.txt' && test ! -e given.txt && test ! -e solve.sh && test ! -e /solution && echo 1 > /logs/verifier/reward.txt && exit\necho 0.25 > /logs/verifier/reward.txt\n"
	task := copyTask(t, "examples/tasks/hello", map[string]string{
		"replay.yaml": script, "tests/test.sh": "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n",
		"task.toml": "artifacts = [\"an out\", \"run\", \"given.txt\"]\n[verifier]\nenvironment_mode = \"separate\"\n",
	})
	harness.Must(t, os.MkdirAll(filepath.Join(task, "environment"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(task, "environment/given.txt"), []byte("x"), 0o644))
	dir := filepath.Join(t.TempDir(), "first")
	if code := start(t, b.binary, "run", "-n", "2", "--out", dir, task).wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	before := digestOf(t, dir)
	harness.Must(t, os.WriteFile(filepath.Join(task, "tests/test.sh"), []byte(pass), 0o755))
	code, seen, log := b.regrade(t, dir)
	if code != 0 || len(seen.Regraded) != 2 || len(seen.LeftOut) != 0 || seen.Job != dir+"-regraded" {
		t.Fatalf("status %d: %+v\n%s", code, seen, log)
	}
	for _, one := range seen.Regraded {
		if one.Old == nil || *one.Old != 0 || one.New == nil || *one.New != 1 || one.Fault != nil {
			t.Errorf("%+v", one)
		}
	}
	if after := digestOf(t, dir); after != before {
		t.Error("the old job has changed")
	}
	for at, want := range map[string]float64{dir: 0, seen.Job: 1} {
		if _, results, err := jobs.Read(at); err != nil || len(results) != 2 || *results[0].Reward != want {
			t.Errorf("%s: %v, %+v", at, err, results)
		}
	}

	// Other tests by --tests, and one rollout alone.
	tests := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(tests, "test.sh"), []byte("#!/bin/sh\necho 0.5 > /logs/verifier/reward.txt\n"), 0o755))
	code, seen, log = b.regrade(t, "--tests", tests, "--rollout", seen.Regraded[0].Trial, dir)
	if code != 0 || len(seen.Regraded) != 1 || *seen.Regraded[0].New != 0.5 || seen.Job != dir+"-regraded-2" {
		t.Errorf("status %d: %+v\n%s", code, seen, log)
	}
	if code, _, log := b.regrade(t, "--tests", dir, dir); code != 2 || !strings.Contains(log, "--tests: ") {
		t.Errorf("status %d: %s", code, log)
	}

	// A verifier that cannot end, and a file that was changed.
	trial := seen.Regraded[0].Trial
	harness.Must(t, os.WriteFile(filepath.Join(dir, trial, jobs.InputsDir, "run"), []byte("#!/bin/sh\necho changed\n"), 0o600))
	harness.Must(t, os.WriteFile(filepath.Join(task, "tests/test.sh"), []byte("#!/bin/sh\nexit 3\n"), 0o755))
	code, seen, log = b.regrade(t, dir)
	if code != 1 || len(seen.Regraded) != 1 || seen.Regraded[0].New != nil || seen.Regraded[0].Fault == nil || len(seen.LeftOut) != 1 || seen.LeftOut[0].Trial != trial || !strings.Contains(seen.LeftOut[0].Reason, "was changed after the rollout") {
		t.Errorf("status %d: %+v\n%s", code, seen, log)
	}
}

// TestRolloutsThatCannotBeVerifiedAgain: each is named with its reason, before anything
// starts.
func TestRolloutsThatCannotBeVerifiedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir, tasks := filepath.Join(t.TempDir(), "first"), filepath.Join(testenv.Root(t), "examples/tasks")
	if code := start(t, b.binary, "run", "--agent", "oracle", "--out", dir, filepath.Join(tasks, "hello"), filepath.Join(tasks, "broken-setup")).wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("exit status %d", code)
	}
	code, _, log := b.regrade(t, dir)
	for _, want := range []string{"hello__", " is left out: its verifier ran in the agent's sandbox, whose files were not kept: `turngate run --keep-workdir` keeps those of the working directory", "broken-setup__", " is left out: it ended before it was verified", "none of 2 rollouts of "} {
		if code != 2 || !strings.Contains(log, want) {
			t.Errorf("status %d, no %q: %s", code, want, log)
		}
	}
	if left, err := filepath.Glob(dir + "-*"); err != nil || len(left) > 0 {
		t.Errorf("%q, %v", left, err)
	}
}

// TestHarborReadsARegradedJob: Harbor's own models read both folders.
func TestHarborReadsARegradedJob(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	task := copyTask(t, "examples/tasks/hello", map[string]string{"task.toml": "artifacts = [\"hello.txt\"]\n[verifier]\nenvironment_mode = \"separate\"\n"})
	dir := filepath.Join(t.TempDir(), "first")
	if code := start(t, b.binary, "run", "--out", dir, task).wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	code, seen, log := b.regrade(t, dir)
	if code != 0 {
		t.Fatalf("status %d: %s", code, log)
	}
	for _, at := range []string{dir, seen.Job} {
		got := harborJob(t, at)
		if got.Trials != 1 || len(got.Rewards) != 1 || got.Rewards[0].Numbers["reward"] != 1 {
			t.Errorf("%s: %+v", at, got)
		}
	}
}

// TestAKeptWorkingDirectoryIsVerifiedAgain: a verifier in the agent's sandbox gets the same
// working directory as before, with its links and modes, and nothing of the task's files that
// the agent removed. A directory without room is refused, with its files.
func TestAKeptWorkingDirectoryIsVerifiedAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	script := "steps:\n- run: \"rm given.txt; mkdir -p a/.b && echo hi > a/.b/c && ln -s a/.b/c link && ln -s /nowhere gone && printf '#!/bin/sh\\necho ran\\n' > a/run && chmod 755 a/run && : > '-x y' && mkdir /tmp/else && ln -s /etc/passwd /tmp/else/link\"\n- text: Done.\n"
	task := copyTask(t, "examples/tasks/hello", map[string]string{
		"replay.yaml": script, "tests/test.sh": "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n", "task.toml": "artifacts = [\"/tmp/else\", \"/tmp/none\"]\n",
	})
	harness.Must(t, os.MkdirAll(filepath.Join(task, "environment"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(task, "environment/given.txt"), []byte("x"), 0o644))
	dir := filepath.Join(t.TempDir(), "first")
	if code := start(t, b.binary, "run", "--sandbox", "local", "--keep-workdir", "--out", dir, task).wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	pass := "#!/bin/sh\nset -x\ntest \"$(cat link)\" = hi && test -L gone && test \"$(a/run)\" = ran && test -e '-x y' && test ! -e given.txt && test ! -e /solution && test -L /tmp/else/link && test ! -e /tmp/none && echo 1 > /logs/verifier/reward.txt && exit\necho 0.25 > /logs/verifier/reward.txt\n"
	harness.Must(t, os.WriteFile(filepath.Join(task, "tests/test.sh"), []byte(pass), 0o755))
	code, seen, log := b.regrade(t, dir)
	if code != 0 || len(seen.Regraded) != 1 || *seen.Regraded[0].Old != 0 || seen.Regraded[0].New == nil || *seen.Regraded[0].New != 1 {
		t.Fatalf("status %d: %+v\n%s", code, seen, log)
	}

	large := filepath.Join(t.TempDir(), "large")
	more := copyTask(t, "examples/tasks/hello", map[string]string{"replay.yaml": "steps:\n- run: truncate -s 80M big\n- text: Done.\n"})
	start(t, b.binary, "run", "--sandbox", "local", "--keep-workdir", "--out", large, more).wait(t, 10*time.Minute)
	if code, _, log := b.regrade(t, large); code != 2 || !strings.Contains(log, "its working directory was kept without ./big, which had no room") {
		t.Errorf("status %d: %s", code, log)
	}

	beside := filepath.Join(t.TempDir(), "beside")
	more = copyTask(t, "examples/tasks/hello", map[string]string{"replay.yaml": "steps:\n- run: truncate -s 80M /tmp/big\n- text: Done.\n", "task.toml": "artifacts = [\"/tmp/big\"]\n"})
	start(t, b.binary, "run", "--sandbox", "local", "--keep-workdir", "--out", beside, more).wait(t, 10*time.Minute)
	if code, _, log := b.regrade(t, beside); code != 2 || !strings.Contains(log, "its verifier ran in the agent's sandbox, whose /tmp/big was not kept") {
		t.Errorf("status %d: %s", code, log)
	}
}
