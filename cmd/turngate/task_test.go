package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

func TestTaskInitMakesATaskThatIsSound(t *testing.T) {
	image := testenv.Image(t)
	binary := testenv.Binary(t)
	dir := filepath.Join(t.TempDir(), "deep", "first task")
	if got := turngate(t, binary, "task", "init", "--image", image, dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := turngate(t, binary, "task", "check", dir)
	if got.code != 0 || !strings.Contains(got.out, "\nok     1\n") || strings.Contains(got.errOut, "warning") {
		t.Fatalf("%+v", got)
	}
}

func TestTaskInitTouchesNothingThatIsThere(t *testing.T) {
	binary := testenv.Binary(t)
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{dir}, {filepath.Join(dir, "link")}, {filepath.Join(dir, "-x")}, {"--image", "a b", filepath.Join(dir, "new")}, {}} {
		if got := turngate(t, binary, append([]string{"task", "init"}, args...)...); got.code != 2 {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestTaskRequestPrintsARequest(t *testing.T) {
	binary := testenv.Binary(t)
	dir := task(t, map[string]string{
		"task.toml":     "artifacts = ['/app/out.txt']\n[solution.env]\nA = 'b'\n[verifier]\nenvironment_mode = 'separate'\n[environment]\ndocker_image = 'debian:12'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
		"solution/x.sh": "true\n", "steps/one/instruction.md": "One.\n", "steps/one/tests/test.sh": "true\n", "steps/two/instruction.md": "Two.\n",
	})
	file := filepath.Join(t.TempDir(), "bundle")
	got := turngate(t, binary, "task", "request", "--agent", "oracle", "--bundle", file, dir)
	var r schema.Request
	if err := json.Unmarshal([]byte(got.out), &r); got.code != 0 || err != nil {
		t.Fatalf("%v, %+v", err, got)
	}
	r.ID, r.Trainer, r.Sandbox.Backend = "alpha-1", "alpha", "docker"
	if err := schema.Validate(&r); err != nil || len(r.Steps) != 2 || r.Steps[0].Verify == nil || r.Steps[0].Verify.Separate == nil || r.Agent.Env["A"] != "b" {
		t.Errorf("%v, %+v", err, r)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := tasks.Open(data); err != nil || !b.Has("steps/two/instruction.md") {
		t.Errorf("%v, %+v", err, b)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != r.Task.Bundle {
		t.Errorf("got %s", r.Task.Bundle)
	}
	got = turngate(t, binary, "task", "request", "--details", dir)
	var d struct {
		Request  schema.Request
		Solution map[string]string
		Warnings []string
	}
	if err := json.Unmarshal([]byte(got.out), &d); got.code != 0 || err != nil {
		t.Fatalf("%v, %+v", err, got)
	}
	if d.Request.Task.Bundle != r.Task.Bundle || d.Request.Agent.Env != nil || d.Solution["A"] != "b" || len(d.Warnings) != 0 {
		t.Errorf("got %+v", d)
	}
	for _, args := range [][]string{{}, {t.TempDir()}, {"--agent", "nobody", dir}} {
		if got := turngate(t, binary, append([]string{"task", "request"}, args...)...); got.code != 2 || got.out != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestTaskImport(t *testing.T) {
	binary := testenv.Binary(t)
	dir := t.TempDir()
	rows := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(rows, []byte("{\"name\":\"a\",\"instruction\":\"x\",\"verify\":\"true\"}\n{\"name\":7,\"instruction\":\"x\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := turngate(t, binary, "task", "import", "--out", filepath.Join(dir, "out"), rows)
	if got.code != 1 || !strings.Contains(got.errOut, `line 2: name: "7" is not valid: want a string`) || !strings.Contains(got.errOut, "1 task made") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "task", "import", "--format", "xml", rows); got.code != 2 || !strings.Contains(got.errOut, "swe-bench") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "task", "import", filepath.Join(dir, "none")); got.code != 2 {
		t.Errorf("%+v", got)
	}
}
