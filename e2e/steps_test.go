package e2e_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// writeTask makes a task directory.
func writeTask(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "task")
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// stepBench runs tasks that tests write, on one worker.
type stepBench struct {
	*bench
	trainer *trainer.Trainer
}

func newStepBench(t *testing.T, sandbox string) stepBench {
	t.Helper()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", sandbox, "--slots", "2")
	return stepBench{b, newTrainer(t, b, "0")}
}

// run runs a task and returns its result.
func (b stepBench) run(t *testing.T, id schema.ID, dir string, o tasks.Options, change func(*schema.Request)) schema.Result {
	t.Helper()
	task, err := tasks.Load(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	r := task.Request
	r.ID, r.Trainer, r.Sandbox.Backend = id, "local", "local"
	change(&r)
	if r.Task.Bundle, err = b.trainer.PutBundle(t.Context(), task.Bundle); err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	res, err := b.trainer.NextResult(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// file reads an artifact. inside names a file in an artifact that is a tar.
func (b stepBench) file(t *testing.T, res schema.Result, name, inside string) string {
	t.Helper()
	i := slices.IndexFunc(res.Artifacts, func(a schema.Artifact) bool { return a.Name == name })
	if i < 0 {
		t.Fatalf("there is no %s among %v", name, res.Artifacts)
	}
	data, err := b.trainer.Artifact(t.Context(), res.Artifacts[i])
	if err != nil {
		t.Fatal(err)
	}
	if inside == "" {
		return string(data)
	}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("%s is not in %s", inside, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == inside {
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(content)
		}
	}
}

// scripted is an agent that runs its instruction as a shell script.
func scripted(r *schema.Request) {
	r.Agent.Name, r.Agent.Args = "command", []string{"/bin/sh", "-c", `exec /bin/sh -eu "$TURNGATE_INSTRUCTION"`}
}

// leaves is a verifier that writes these rewards if its condition holds.
func leaves(condition, rewards string) string {
	return "set -eu\n" + condition + "\nprintf '%s' '" + rewards + "' > /logs/verifier/reward.json\n"
}

func TestStepsOfATask(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newStepBench(t, "local")
	t.Run("mean", func(t *testing.T) { meanOfSteps(t, b) })
	t.Run("artifacts", func(t *testing.T) { artifactsOfSteps(t, b) })
	for name, c := range endsOfSteps() {
		t.Run(name, func(t *testing.T) {
			res := b.run(t, schema.ID("local-"+strings.ReplaceAll(name, " ", "-")), stepped(t, c.change), tasks.Options{}, scripted)
			code := ""
			if res.Fault != nil {
				code = res.Fault.Code
			}
			if len(res.Steps) != c.steps || code != c.fault || (res.Reward == nil) != c.null || res.Reward != nil && *res.Reward != c.reward {
				t.Errorf("got %d steps, reward %v, fault %v, status %s, notes %q", len(res.Steps), res.Reward, res.Fault, res.Status, res.Notes)
			}
			if want := map[bool]schema.Status{true: schema.StatusFailed, false: schema.StatusDone}[c.null]; res.Status != want {
				t.Errorf("status %s, want %s", res.Status, want)
			}
		})
	}
	t.Run("oracle", func(t *testing.T) {
		change := map[string]string{
			"task.toml":                   "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
			"steps/one/solution/solve.sh": "cat data/in.txt > out.txt\n",
			"steps/two/tests/test.sh":     leaves(`test "$(cat out.txt)" = whole; test ! -e /solution/own`, `{"reward": 1}`), "steps/one/solution/own": "x",
		}
		res := b.run(t, "local-oracle", stepped(t, change), tasks.Options{}, func(r *schema.Request) { r.Agent.Name = "oracle" })
		if res.Reward == nil || *res.Reward != 1 || res.Fault != nil || len(res.Steps) != 2 {
			t.Errorf("got %+v, fault %v, steps %+v", res, res.Fault, res.Steps)
		}
	})
	t.Run("nop", func(t *testing.T) {
		change := map[string]string{"steps/one/tests/test.sh": leaves("", `{"reward": 0}`), "steps/two/tests/test.sh": leaves("", `{"reward": 0}`)}
		res := b.run(t, "local-nop", stepped(t, change), tasks.Options{}, func(r *schema.Request) { r.Agent.Name = "nop" })
		if res.Reward == nil || *res.Reward != 0 || res.Fault != nil || len(res.Steps) != 3 {
			t.Errorf("got %+v, fault %v", res, res.Fault)
		}
	})
}

// stepped writes a task of three steps, with the given changes of its files.
func stepped(t *testing.T, change map[string]string) string {
	t.Helper()
	files := map[string]string{
		"task.toml": `
artifacts = ["out.txt"]
[[steps]]
name = "one"
artifacts = [{ source = "/tmp/deep", destination = "kept", exclude = ["*.log"] }]
[steps.healthcheck]
command = "test -e ready-one"
[[steps]]
name = "two"
[[steps]]
name = "three"
`,
		"tests/common.sh": "common() { test -e out.txt; }\n", "solution/solve.sh": "echo whole > out.txt\n",
		"steps/one/workdir/setup.sh": "touch ready-one\n", "steps/one/workdir/data/in.txt": "from one\n",
		"steps/one/instruction.md": `
cp data/in.txt out.txt
mkdir -p /tmp/deep && echo a > /tmp/deep/a.txt && echo b > /tmp/deep/b.log
echo mine > /logs/artifacts/mine; echo log > /logs/agent/log
mkdir -p /tests && echo 'evil' > /tests/left; echo '{"reward":99}' > /logs/verifier/reward.json || true
`,
		"steps/one/tests/test.sh":    leaves(". /tests/common.sh; common; test ! -e /tests/left; test \"$(cat out.txt)\" = 'from one'", `{"reward": 1, "style": 0.5}`),
		"steps/two/workdir/only-two": "x",
		"steps/two/instruction.md": `
test -e only-two; test -e ready-one; test "$(cat out.txt)" = "from one"
test ! -e /tests/test.sh; test ! -e /logs/verifier/reward.json; test ! -e /logs/artifacts/mine; test ! -e /logs/agent/log
echo two > out.txt; exit 3
`,
		"steps/two/tests/test.sh":     leaves(`test "$(cat out.txt)" = two`, `{"reward": 0}`),
		"steps/three/instruction.md":  "echo three > out.txt\n",
		"steps/three/tests/readme.md": "no test.sh here\n",
	}
	maps.Copy(files, change)
	return writeTask(t, files)
}

func meanOfSteps(t *testing.T, b stepBench) {
	res := b.run(t, "local-mean", stepped(t, nil), tasks.Options{}, scripted)
	if res.Status != schema.StatusDone || res.Reward == nil || *res.Reward != 0.5 || res.Rewards["style"] != 0.25 || len(res.Steps) != 3 {
		t.Fatalf("got %+v, fault %v, steps %+v", res, res.Fault, res.Steps)
	}
	one, two, three := res.Steps[0], res.Steps[1], res.Steps[2]
	if one.Fault != nil || one.Reward == nil || *one.Reward != 1 || one.Rewards["style"] != 0.5 || one.Separation != schema.SeparationSameUser {
		t.Errorf("one: %+v", one)
	}
	if want := "step/one/upload step/one/setup step/one/healthcheck step/one/agent step/one/artifacts step/one/verify"; strings.Join(one.Phases, " ") != want {
		t.Errorf("phases %q", one.Phases)
	}
	if two.Fault == nil || two.Fault.Code != schema.CodeExit || two.Exit == nil || two.Exit.Code != 3 || two.Reward == nil || *two.Reward != 0 {
		t.Errorf("two: %+v, %v", two, two.Fault)
	}
	if three.Reward != nil || three.Fault != nil || res.Fault == nil || res.Fault.Code != schema.CodeExit {
		t.Errorf("three: %+v; the whole: %v", three, res.Fault)
	}
}

func artifactsOfSteps(t *testing.T, b stepBench) {
	res := b.run(t, "local-artifacts", stepped(t, nil), tasks.Options{}, scripted)
	for _, c := range []struct{ name, inside, want string }{
		{"steps/one/out.txt", "", "from one\n"}, {"steps/two/out.txt", "", "two\n"}, {"steps/three/out.txt", "", "three\n"},
		{"steps/one/logs/artifacts.tar", "mine", "mine\n"}, {"steps/one/logs/agent.tar", "log", "log\n"}, {"steps/one/kept.tar", "a.txt", "a\n"},
	} {
		if got := b.file(t, res, c.name, c.inside); got != c.want {
			t.Errorf("%s %s: got %q", c.name, c.inside, got)
		}
	}
	checkManifest(t, b.file(t, res, "steps/one/manifest.json", ""), []manifestEntry{
		{"/logs/artifacts", "artifacts/logs/artifacts", "directory", "ok", nil, []string{}}, {"out.txt", "artifacts/out.txt", "file", "ok", nil, []string{}},
		{"/tmp/deep", "artifacts/kept", "directory", "ok", nil, []string{"*.log"}},
	})
	checkManifest(t, b.file(t, res, "steps/two/manifest.json", ""), []manifestEntry{
		{"/logs/artifacts", "artifacts/logs/artifacts", "directory", "empty", nil, []string{}}, {"out.txt", "artifacts/out.txt", "file", "ok", nil, []string{}},
	})
}

// stepsEnd is a change of the task of steps and the end that it leads to.
type stepsEnd struct {
	change map[string]string
	steps  int
	reward float64
	null   bool
	fault  string
}

func endsOfSteps() map[string]stepsEnd {
	return map[string]stepsEnd{
		"final": {steps: 2, reward: 0, fault: schema.CodeExit, change: map[string]string{
			"task.toml": "multi_step_reward_strategy = 'final'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"}},
		"a last step without tests": {steps: 3, null: true, fault: schema.CodeExit, change: map[string]string{
			"task.toml": "multi_step_reward_strategy = 'final'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n[[steps]]\nname = 'three'\n"}},
		"a reward that is too low": {steps: 1, reward: 1, change: map[string]string{
			"task.toml": "[[steps]]\nname = 'one'\nmin_reward = { style = 0.75 }\n[[steps]]\nname = 'two'\n"}},
		"a reward that is not there": {steps: 1, reward: 1, change: map[string]string{
			"task.toml": "[[steps]]\nname = 'one'\nmin_reward = { nope = 0 }\n[[steps]]\nname = 'two'\n"}},
		"a reward that suffices": {steps: 2, reward: 0.5, fault: schema.CodeExit, change: map[string]string{
			"task.toml": "[[steps]]\nname = 'one'\nmin_reward = 1\n[[steps]]\nname = 'two'\n"}},
		"a setup that fails": {steps: 2, reward: 1, fault: schema.CodeSetup, change: map[string]string{"steps/two/workdir/setup.sh": "exit 7"}},
		"a verifier without a reward": {steps: 2, reward: 1, fault: schema.CodeExit, change: map[string]string{
			"steps/two/tests/test.sh": "exit 1"}},
		"no step verified": {steps: 1, null: true, fault: schema.CodeNoReward, change: map[string]string{"steps/one/tests/test.sh": "exit 1"}},
		"a health check that fails": {steps: 1, null: true, fault: schema.CodeSetup, change: map[string]string{
			"task.toml": "[[steps]]\nname = 'one'\n[steps.healthcheck]\ncommand = 'sleep 60'\ntimeout_sec = 0.1\ninterval_sec = 0.01\nretries = 2\n"}},
	}
}

type manifestEntry struct {
	Source, Destination, Type, Status string
	Service                           *string
	Exclude                           []string
}

func checkManifest(t *testing.T, text string, want []manifestEntry) {
	t.Helper()
	var got []manifestEntry
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) {
		t.Errorf("the manifest has\n%s, want\n%s", a, b)
	}
}

// TestASeparateVerifierSeesArtifactsAlone checks that no other files and changes
// of the agent are in the verifier's sandbox.
func TestASeparateVerifierSeesArtifactsAlone(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newStepBench(t, "local")
	files := map[string]string{
		"task.toml": `
artifacts = ["out.txt", "/opt/state", "/gone", "/logs/agent/note", { source = "dump.txt", destination = "named/dump" }, { source = "out.txt", destination = "agent.stdout.log" }]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "echo collected > dump.txt"
[[verifier.collect]]
command = "echo broken >&2; exit 4"
`,
		"instruction.md": `
echo work > out.txt; echo me > /logs/agent/note; mkdir -p /opt/state; echo s > /opt/state/s; ln -s /etc/passwd /opt/state/link
echo secret > hidden.txt; mkdir -p /tests; echo 'echo 99 > /logs/verifier/reward.txt' > /tests/test.sh
echo '{"reward":99}' > /logs/verifier/reward.json; echo said > /logs/artifacts/said
(while true; do echo '{"reward":99}' > /logs/verifier/reward.json; done) &
`,
		"tests/test.sh": leaves(`test "$(cat out.txt)" = work; test "$(cat /opt/state/s)" = s; test "$(cat dump.txt)" = collected; test "$(cat /logs/agent/note)" = me; test "$(cat /logs/artifacts/said)" = said
test ! -e hidden.txt; test ! -e /logs/verifier/reward.json; test ! -e /opt/state/link; test ! -e /tmp/.turngate-agent`, `{"reward": 1}`),
	}
	res := b.run(t, "local-separate", writeTask(t, files), tasks.Options{}, scripted)
	if res.Status != schema.StatusDone || res.Reward == nil || *res.Reward != 1 || res.Separation != schema.SeparationSandbox || res.Fault != nil {
		t.Fatalf("got %+v, fault %v, notes %q", res, res.Fault, res.Notes)
	}
	if !slices.ContainsFunc(res.Notes, func(n string) bool { return strings.Contains(n, "exit 4") && strings.Contains(n, "broken") }) {
		t.Errorf("the hook that failed is not noted: %q", res.Notes)
	}
	manifest := b.file(t, res, schema.ArtifactManifest, "")
	none := []string{}
	checkManifest(t, manifest, []manifestEntry{
		{"/logs/artifacts", "artifacts/logs/artifacts", "directory", "ok", nil, none}, {"out.txt", "artifacts/out.txt", "file", "ok", nil, none},
		{"/opt/state", "artifacts/opt/state", "directory", "ok", nil, none}, {"/gone", "artifacts/gone", "directory", "failed", nil, none},
		{"/logs/agent/note", "artifacts/logs/agent/note", "file", "skipped", nil, none},
		{"dump.txt", "artifacts/named/dump", "file", "ok", nil, none}, {"out.txt", "artifacts/agent.stdout.log", "file", "skipped", nil, none},
	})
	if got := b.file(t, res, "named/dump", ""); got != "collected\n" {
		t.Errorf("got %q", got)
	}

	t.Run("any task by request", func(t *testing.T) {
		files["task.toml"] = `artifacts = ["out.txt", "/opt/state", "/logs/agent/note", "dump.txt"]`
		files["instruction.md"] += "echo collected > dump.txt\n"
		res := b.run(t, "local-flag", writeTask(t, files), tasks.Options{Verifier: "separate"}, scripted)
		if res.Reward == nil || *res.Reward != 1 || res.Separation != schema.SeparationSandbox {
			t.Errorf("got %+v, fault %v, notes %q", res, res.Fault, res.Notes)
		}
	})
	t.Run("another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			testenv.Need(t, "root", errors.New("a sandbox of several users needs root"))
		}
		files["task.toml"] = "[agent]\nuser = 1234\n[verifier]\nuser = 'root'\n"
		files["instruction.md"] = "true\n"
		files["tests/test.sh"] = leaves(`test "$(id -u)" = 0`, `{"reward": 1}`)
		res := b.run(t, "local-other", writeTask(t, files), tasks.Options{}, scripted)
		if res.Reward == nil || *res.Reward != 1 || res.Separation != schema.SeparationOtherUser {
			t.Errorf("got %+v, fault %v", res, res.Fault)
		}
	})
	t.Run("Harbor reads the manifest", func(t *testing.T) {
		python := testenv.HarborPython(t)
		cmd := exec.CommandContext(t.Context(), python, "-c", `
import json, sys
from harbor.models.trial.artifact_manifest import ArtifactManifest, ArtifactManifestEntry
data = json.load(sys.stdin)
m = ArtifactManifest(entries=[ArtifactManifestEntry.model_validate(e) for e in data])
assert m.to_json_data() == data and len(data) >= 6, (m.to_json_data(), data)`)
		cmd.Stdin = strings.NewReader(manifest)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// TestStepsOfARealAgent checks that the calls of all steps have one numbering and
// one transcript, and that each step begins a new conversation.
func TestStepsOfARealAgent(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "pi")
	b.worker(t, "", "--sandboxes", "docker")
	s := stepBench{b, newTrainer(t, b, "0")}
	script, err := replay.Parse([]byte("steps:\n- run: sh ./todo.sh\n- text: Done.\n"))
	if err != nil {
		t.Fatal(err)
	}
	served, serving := make(chan struct{}), context.WithoutCancel(t.Context())
	go func() {
		defer close(served)
		_ = s.trainer.Serve(serving, trainer.Whole(script.Answer))
	}()
	defer func() { s.trainer.Close(); <-served }()
	docker := func(r *schema.Request) {
		r.Agent.Name, r.Sandbox.Backend, r.Sandbox.Image = "pi", "docker", testenv.Image(t)
	}
	files := map[string]string{
		"task.toml":                "artifacts = ['out.txt']\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n[steps.verifier]\nenvironment_mode = 'separate'\n",
		"steps/one/instruction.md": "Do the first.", "steps/one/workdir/todo.sh": "echo one > out.txt; echo 99 > /logs/verifier/reward.txt\n",
		"steps/two/instruction.md": "Do the second.", "steps/two/workdir/todo.sh": "echo two >> out.txt; mkdir -p /logs/verifier; echo '{\"reward\":99}' > /logs/verifier/reward.json\n",
		"steps/one/tests/test.sh": leaves(`test "$(cat out.txt)" = one`, `{"reward": 1}`),
		"steps/two/tests/test.sh": leaves(`test "$(tr '\n' ' ' < out.txt)" = 'one two '; test ! -e todo.sh`, `{"reward": 0.5}`),
	}
	res := s.run(t, "local-steps", writeTask(t, files), tasks.Options{}, docker)
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 0.75 || len(res.Steps) != 2 {
		t.Fatalf("got %+v, fault %v, steps %+v", res, res.Fault, res.Steps)
	}
	one, two := res.Steps[0], res.Steps[1]
	if one.FirstCall != 1 || one.LastCall != 2 || two.FirstCall != 3 || two.LastCall != 4 || res.Calls[schema.TagAgent].Count != 4 || len(res.Committed) != 4 {
		t.Errorf("one %+v, two %+v, calls %+v", one, two, res.Calls)
	}
	if one.Separation != schema.SeparationSameUser || two.Separation != schema.SeparationSandbox || res.Separation != schema.SeparationSameUser {
		t.Errorf("separations %q, %q, %q", one.Separation, two.Separation, res.Separation)
	}
	if n := len(slices.DeleteFunc(slices.Clone(res.Artifacts), func(a schema.Artifact) bool { return a.Name != res.Transcript })); n != 1 {
		t.Errorf("%d transcripts among %v", n, res.Artifacts)
	}
	for _, name := range []string{"steps/one/agent-sessions.tar", "steps/two/agent-sessions.tar"} {
		if s.file(t, res, name, "") == "" {
			t.Errorf("%s is empty", name)
		}
	}

	files = map[string]string{
		"task.toml": "artifacts = ['out.txt']\n[verifier]\nenvironment_mode = 'separate'\n", "instruction.md": "Do it.",
		"tests/test.sh": leaves(`test "$(cat out.txt)" = planted; test ! -e todo.sh`, `{"reward": 0.25}`),
	}
	res = s.run(t, "local-apart", writeTask(t, files), tasks.Options{}, func(r *schema.Request) {
		docker(r)
		r.Setup = []schema.Command{{Run: `echo 'echo planted > out.txt; mkdir -p /logs/verifier; echo 99 > /logs/verifier/reward.txt; echo "{\"reward\":99}" > /logs/verifier/reward.json' > todo.sh`}}
	})
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 0.25 || res.Separation != schema.SeparationSandbox {
		t.Errorf("got %+v, fault %v", res, res.Fault)
	}
	nothingLeft(t, "docker", "local-apart")
}

// TestEvidenceOfASideCar checks that a hook in a side-car saves the state of the
// side-car, which the agent cannot change, and that the separate verifier gets it.
func TestEvidenceOfASideCar(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	testenv.Image(t)
	b := newStepBench(t, "docker")
	files := map[string]string{
		"task.toml": `
artifacts = ["out.txt", { source = "/evidence", service = "db" }, { source = "/state", service = "none" }]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "mkdir -p /evidence && cat /etc/hostname > /evidence/name && echo seen > /evidence/dump"
service = "db"
[[verifier.collect]]
command = "true"
service = "none"
`,
		"instruction.md": "mkdir -p /evidence; echo forged > /evidence/dump; echo work > out.txt\n",
		"tests/test.sh":  leaves(`echo seen > /share/seen; test "$(cat /evidence/dump)" = seen; test "$(cat out.txt)" = work`, `{"reward": 1}`),
	}
	res := b.run(t, "local-evidence", writeTask(t, files), tasks.Options{}, func(r *schema.Request) {
		scripted(r)
		r.Sandbox.Backend, r.Sandbox.Image = "docker", testenv.Image(t)
		r.Sandbox.Services = []schema.Service{{Name: "db", Image: testenv.Image(t), Container: schema.Container{Command: []string{"sleep", "600"}}}}
		r.Verify.Separate = &schema.SandboxChoice{
			Folders:   []schema.Folder{{Name: "share", Keep: true}},
			Container: schema.Container{Mounts: []schema.Mount{{Folder: "share", Path: "/share"}}},
		}
	})
	if b.file(t, res, "verifier/folders/share.tar", "seen") != "seen\n" {
		t.Error("the folder of the verifier's sandbox was not kept")
	}
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 1 {
		t.Fatalf("got %+v, fault %v, notes %q", res, res.Fault, res.Notes)
	}
	db, none := "db", "none"
	checkManifest(t, b.file(t, res, schema.ArtifactManifest, ""), []manifestEntry{
		{"/logs/artifacts", "artifacts/logs/artifacts", "directory", "empty", nil, []string{}}, {"out.txt", "artifacts/out.txt", "file", "ok", nil, []string{}},
		{"/evidence", "artifacts/evidence", "directory", "ok", &db, []string{}}, {"/state", "artifacts/state", "directory", "failed", &none, []string{}},
	})
	if !slices.ContainsFunc(res.Notes, func(n string) bool { return strings.Contains(n, `"true" in none failed`) }) {
		t.Errorf("notes %q", res.Notes)
	}
	nothingLeft(t, "docker", "local-evidence")
}
