package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// checks copies the scripts of .ci into a new folder, with steps of its own: each that is
// not in steps passes.
func checks(t *testing.T, steps map[string]string) (dir string) {
	t.Helper()
	root, dir := testenv.Root(t), t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, ".ci", "steps"), 0o755))
	for _, name := range []string{"run", "steps.sh", "env.sh"} {
		data, err := os.ReadFile(filepath.Join(root, ".ci", name))
		harness.Must(t, err)
		harness.Must(t, os.WriteFile(filepath.Join(dir, ".ci", name), data, 0o755))
	}
	list, err := exec.Command(filepath.Join(root, ".ci", "run"), "--list").Output()
	harness.Must(t, err)
	for _, name := range strings.Fields(string(list)) {
		script, ok := steps[name]
		if !ok {
			script = "echo step " + name
		}
		harness.Must(t, os.WriteFile(filepath.Join(dir, ".ci", "steps", name), []byte("#!/usr/bin/env bash\nset -e\n"+script+"\n"), 0o755))
	}
	return dir
}

func runChecks(t *testing.T, dir string, args ...string) (said string, passed bool) {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, ".ci", "run"), args...)
	cmd.Env = append(os.Environ(), "LOGS="+filepath.Join(dir, "logs"), "TURNGATE_SCREENSHOTS="+filepath.Join(dir, "pictures"))
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// TestAllFailuresOfTheChecksAreReported: a failed step ends no other, except those that
// need it.
func TestAllFailuresOfTheChecksAreReported(t *testing.T) {
	t.Parallel()
	said, passed := runChecks(t, checks(t, nil))
	if !passed || !strings.HasSuffix(said, "all is well\n") || !strings.Contains(said, "step core\n") {
		t.Errorf("all steps pass, and yet:\n%s", said)
	}
	said, passed = runChecks(t, checks(t, map[string]string{"lint": "exit 3", "docker": "false"}))
	for _, want := range []string{"step unit\n", "step user\n", "step left\n", "failed: lint after ", "failed: docker after ", "failed: core not run: it needs docker"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	if passed || strings.Contains(said, "step core\n") || strings.Contains(said, "all is well") {
		t.Errorf("two steps failed, and yet:\n%s", said)
	}
	said, passed = runChecks(t, checks(t, nil), "core")
	if !passed || strings.Contains(said, "step unit") || !strings.Contains(said, "step agents\nstep core") && strings.Index(said, "step agents\n") > strings.Index(said, "step core\n") {
		t.Errorf("one step and those that it needs:\n%s", said)
	}
	if said, passed = runChecks(t, checks(t, nil), "nothing"); passed || !strings.Contains(said, "has no step nothing") {
		t.Errorf("a step that is not there:\n%s", said)
	}
}

// TestManyUnsureTestsFail: five tests that passed only when they ran again are listed, six
// are a failure.
func TestManyUnsureTestsFail(t *testing.T) {
	t.Parallel()
	said, passed := runChecks(t, checks(t, map[string]string{"unit": `for i in 1 2 3 4 5; do echo "unsure test $i" >>"$UNSURE"; done`}))
	if !passed || !strings.Contains(said, "unsure test 5\n") {
		t.Errorf("five unsure tests:\n%s", said)
	}
	said, passed = runChecks(t, checks(t, map[string]string{"unit": `for i in 1 2 3 4 5 6; do echo "unsure test $i" >>"$UNSURE"; done`}))
	if passed || !strings.Contains(said, "more than five tests are unsure") {
		t.Errorf("six unsure tests:\n%s", said)
	}
}

// TestAServerStaysForARunBeside: a run does not end the engine that another one uses, too.
func TestAServerStaysForARunBeside(t *testing.T) {
	t.Parallel()
	other := exec.Command("sleep", "600")
	other.Env = []string{"TURNGATE_CI_RUN=another"}
	harness.Must(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	dir := checks(t, map[string]string{"docker": `sleep 600 >/dev/null 2>&1 3>&- & echo $! >>"$STARTED"`})
	said, passed := runChecks(t, dir, "docker")
	started, err := os.ReadFile(filepath.Join(dir, "logs", "started"))
	harness.Must(t, err)
	server, err := strconv.Atoi(strings.TrimSpace(string(started)))
	harness.Must(t, err)
	if !passed || !strings.Contains(said, "stays, for the run beside") {
		t.Errorf("a run with another one beside it:\n%s", said)
	}
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Errorf("the server has ended: %v", err)
	}
}

// TestThingsOfOthersAreNotLeft: what is there before the checks is not theirs, nor is a
// process without their mark, unless it runs a program of their tree.
func TestThingsOfOthersAreNotLeft(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	left := filepath.Join(testenv.Root(t), ".ci", "steps", "left")
	tree := t.TempDir()
	before := filepath.Join(tree, "before")
	look := func() string {
		cmd := exec.Command(left)
		cmd.Dir = tree
		cmd.Env = append(os.Environ(), "BEFORE="+before, "TURNGATE_CI_RUN=mine")
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	start := func(name string) string {
		dir, err := os.MkdirTemp("/tmp", "turngate-run-"+name)
		harness.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	worker := func(program string, env ...string) string {
		cmd := exec.Command("/bin/bash", "-c", `exec -a "turngate worker" `+program+" 600")
		cmd.Env = env
		harness.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return strconv.Itoa(cmd.Process.Pid) + " turngate worker 600\n"
	}
	theirs := start("before")
	out, err := exec.Command(left, "before").Output()
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(before, out, 0o600))
	ours := start("after")
	data, err := os.ReadFile("/bin/sleep")
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(tree, "sleep"), data, 0o700))
	mine, other, cleared := worker("/bin/sleep", "TURNGATE_CI_RUN=mine"), worker("/bin/sleep", "TURNGATE_CI_RUN=another"), worker(filepath.Join(tree, "sleep"), "PATH=/bin")
	if said := look(); strings.Contains(said, other) || !strings.Contains(said, mine) || !strings.Contains(said, cleared) {
		t.Errorf("%q is another's, %q and %q are not:\n%s", other, mine, cleared, said)
	}
	if said := look(); strings.Contains(said, theirs) || !strings.Contains(said, ours) {
		t.Errorf("%s was there before, %s was not:\n%s", theirs, ours, said)
	}
}

// TestAFailedTestRunsAgain gives .ci/tests a test that passes when it runs again, one that
// never passes, and a package that does not build.
func TestAFailedTestRunsAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for name, c := range map[string]struct {
		code         string
		passed       bool
		says, unsure string
	}{
		"once":   {`if _, err := os.Stat("seen"); err != nil { _ = os.WriteFile("seen", nil, 0o600); t.Fatal("first time") }`, true, "first time", "example.TestOne/part failed in 1 of 2 runs: "},
		"always": {`t.Fatal("never")`, false, "failed: example.TestOne/part", ""},
		"broken": {`not Go`, false, "expected", ""},
	} {
		dir := t.TempDir()
		harness.Must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example\n"), 0o600))
		harness.Must(t, os.WriteFile(filepath.Join(dir, "one_test.go"), []byte("package example\n\nimport (\n\"os\"\n\"testing\"\n)\n\nvar _ = os.Stat\n\nfunc TestOne(t *testing.T) {\nt.Run(\"part\", func(t *testing.T) {\n"+c.code+"\n})\n}\n"), 0o600))
		cmd := exec.Command(filepath.Join(testenv.Root(t), ".ci", "tests"), "-count=1", "./...")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LOGS="+filepath.Join(dir, "logs"), "UNSURE="+filepath.Join(dir, "unsure"))
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.passed || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		unsure, _ := os.ReadFile(filepath.Join(dir, "unsure"))
		if !strings.HasPrefix(string(unsure), c.unsure) || c.unsure == "" && len(unsure) > 0 || strings.Count(string(unsure), "\n") > 1 {
			t.Errorf("%s: unsure are %q", name, unsure)
		}
	}
}
