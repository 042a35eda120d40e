package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
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
