package importer_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/importer"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/tasks"
)

// The rows have the fields of the published data sets with texts of our own.
const (
	sweBench = `{"repo":"astropy/astropy","instance_id":"astropy__astropy-12907","base_commit":"d16bfe05a744909de4b27f5875fe0d4ed41ce607","patch":"diff --git a/sum.py b/sum.py\n--- a/sum.py\n+++ b/sum.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n","test_patch":"diff --git a/test_sum.py b/test_sum.py\n--- a/test_sum.py\n+++ b/test_sum.py\n@@ -1,5 +1,9 @@\n+import pytest\n from sum import add\n \n \n def test_zero():\n     assert add(1, 0) == 1\n+\n+@pytest.mark.parametrize(\"n\", [\"a b\", \"'; touch /tmp/pwned; '\"])\n+def test_add(n): assert add(1, 2) == 3\n","problem_statement":"The sum is wrong.","hints_text":"","created_at":"2022-03-03T15:14:54Z","version":"4.3","FAIL_TO_PASS":"[\"test_sum.py::test_add[a\", \"test_sum.py::test_add['; touch /tmp/pwned; ']\"]","PASS_TO_PASS":"[\"test_sum.py::test_zero\"]","environment_setup_commit":"298ccb478e6bf092953bca67a3d29dc6c35f6752"}`
	sweSmith = `{"instance_id":"oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc","patch":"diff --git a/sum.py b/sum.py\n--- a/sum.py\n+++ b/sum.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a + b\n+    return a - b\n","FAIL_TO_PASS":["tests/test_sum.py::test_add"],"PASS_TO_PASS":["tests/test_sum.py::test_zero"],"created_at":"2025-01-01","image_name":"jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536","repo":"swesmith/oauthlib__oauthlib.1fd52536","problem_statement":"It is wrong."}`
	r2e      = `{"repo_name":"orange3","docker_image":"namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d","commit_hash":"2d9617bd","parsed_commit_content":"{\"file_diffs\":[{\"header\":{\"file\":{\"path\":\"Orange/util.py\"}},\"old_file_content\":\"a\",\"new_file_content\":\"b\"}]}","problem_statement":"[ISSUE] It is wrong.","expected_output_json":"{\"TestUtil.test_a\": \"PASSED\", \"TestUtil.test_b\": \"FAILED\"}","modified_files":["Orange/util.py"]}`
	openEnv  = `{"task_id":"fizz","instruction":"Write it.","setup":["touch ready","echo 'it''s' > \"a b\""],"verify":["test -f ready","test -f done"],"image":"turngate-test-base:bookworm"}`
	session  = `{"id":"session","instruction":"Write it.","setup":"touch ready","upload_files":{"in.txt":"x","/opt/data/a 'b'.txt":"y"},"verifier":"test -f /opt/data/\"a 'b'.txt\""}`
	plain    = `{"name":"plain","instruction":"Do it.","image":"turngate-test-base:bookworm","verify":"test -f done","solution":"touch done"}`
)

func run(t *testing.T, dir string, o importer.Options, rows ...string) *importer.Report {
	t.Helper()
	r, err := importer.Import(strings.NewReader(strings.Join(rows, "\n")), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRowsOfPublishedDataSetsBecomeTasks(t *testing.T) {
	dir := t.TempDir()
	r := run(t, dir, importer.Options{}, sweBench, sweSmith, r2e, openEnv, session, plain)
	if len(r.Made) != 6 || len(r.Bad) != 0 {
		t.Fatalf("%+v", r)
	}
	for _, name := range r.Made {
		task, err := tasks.Load(filepath.Join(dir, name), tasks.Options{})
		if err != nil || len(task.Warnings) > 0 || task.Request.Verify == nil {
			t.Errorf("%s: %v, %+v", name, err, task)
		}
	}
	bench := filepath.Join(dir, "astropy__astropy-12907")
	if toml := read(t, bench, "task.toml"); !strings.Contains(toml, "docker_image = 'swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest'") || !strings.Contains(toml, "workdir = '/testbed'") {
		t.Error(toml)
	}
	var spec struct {
		Fail  []string `json:"fail_to_pass"`
		Files []string `json:"test_files"`
	}
	if err := json.Unmarshal([]byte(read(t, bench, "tests/tests.json")), &spec); err != nil || len(spec.Fail) != 2 || spec.Files[0] != "test_sum.py" {
		t.Errorf("%+v, %v", spec, err)
	}
	if d := read(t, dir, "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc/environment/Dockerfile"); !strings.HasPrefix(d, "FROM jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536\nWORKDIR \"/testbed\"\n") {
		t.Error(d)
	}
	if f := read(t, dir, "namanjain12-orange3_final-2d9617bd0cb1f0ba61771258410ab8fae8e7e24d/solution/files/Orange/util.py"); f != "b" {
		t.Error(f)
	}
	if f := read(t, dir, "session/environment/files/opt/data/a 'b'.txt") + read(t, dir, "session/environment/files/workspace/in.txt"); f != "yx" {
		t.Error(f)
	}
	again := run(t, dir, importer.Options{Skip: true}, plain, openEnv)
	if again.Skipped != 2 || len(again.Made)+len(again.Bad) != 0 {
		t.Errorf("%+v", again)
	}
	if again = run(t, dir, importer.Options{}, plain); len(again.Bad) != 1 || !strings.Contains(again.Bad[0].Want, "exists already") {
		t.Errorf("%+v", again.Bad)
	}
}

func TestBadRowsAreNamedAndTheOthersMade(t *testing.T) {
	dir := t.TempDir()
	r := run(t, dir, importer.Options{}, "{", "[]", "", `{"x":1}`,
		strings.Replace(sweBench, `"[\"test_sum.py::test_add[a\"`, `"[7`, 1),
		strings.Replace(sweBench, "d16bfe05a744909de4b27f5875fe0d4ed41ce607", "HEAD; rm -rf /", 1),
		strings.Replace(sweBench, "+++ b/test_sum.py", "+++ b/../../etc/passwd", 1),
		strings.Replace(sweSmith, "jyangballin/", `x\nRUN evil `, 1),
		strings.Replace(r2e, "Orange/util.py", "../../../util.py", 1),
		strings.Replace(session, "/opt/data", "/../..", 1),
		strings.Replace(session, `"in.txt"`, `"../in.txt"`, 1),
		strings.Replace(session, `"in.txt"`, `"/opt/data"`, 1),
		strings.Replace(plain, `"name"`, `"workdir":"/x\nRUN evil","name"`, 1),
		strings.Replace(plain, "Do it.", " ", 1),
		plain, plain)
	var fields []string
	for _, b := range r.Bad {
		fields = append(fields, b.Field)
	}
	if got := strings.Join(fields, " "); got != "row row row FAIL_TO_PASS base_commit test_patch image parsed_commit_content upload_files upload_files row workdir instruction name" {
		t.Errorf("got %s\n%v", got, r.Bad)
	}
	if r.Bad[3].Line != 5 || len(r.Made) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestHostileRowsAreConfined: no row makes files outside the folder, or puts its
// text into a script that all tasks share.
func TestHostileRowsAreConfined(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	for _, id := range []string{"../../up", "/etc/passwd", "..", "-rf", ".git", "a/b\\c", "con\u0000", strings.Repeat("x", 5000), "$(touch pwned)", "\n"} {
		name, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		run(t, dir, importer.Options{}, strings.Replace(plain, `"name":"plain"`, `"id":`+string(name), 1), strings.Replace(sweBench, `"astropy__astropy-12907"`, string(name), 1))
	}
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, p); strings.HasPrefix(rel, ".") && rel != "." || strings.HasPrefix(rel, "-") || len(d.Name()) > 200 {
			t.Errorf("made %s", p)
		}
		if d.Name() == "test.sh" && strings.Contains(read(t, p), "pwned") {
			t.Errorf("%s has text of the row", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestHarborLoadsImportedTasks(t *testing.T) {
	python := testenv.HarborPython(t)
	dir := t.TempDir()
	r := run(t, dir, importer.Options{}, sweBench, sweSmith, r2e, openEnv, session, plain)
	if err := tasks.Init(filepath.Join(dir, "started"), "debian:bookworm-slim"); err != nil {
		t.Fatal(err)
	}
	script := "import sys\nfrom harbor.models.task.task import Task\nfor d in sys.argv[1:]:\n  t = Task(d); assert t.instruction.strip(), d; assert t.paths.discovered_test_path, d\nprint(len(sys.argv)-1)"
	args := []string{"-c", script, filepath.Join(dir, "started")}
	for _, m := range r.Made {
		args = append(args, filepath.Join(dir, m))
	}
	if out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "7" {
		t.Fatalf("%v\n%s", err, out)
	}
}

// local changes an imported task to run in the local sandbox, which has the
// programs of this machine. The working directory becomes a repository.
func local(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	toml := "[turngate]\nsetup = ['git init -q && git add -A && git -c user.name=t -c user.email=t@localhost commit -q -m base']\n"
	if err := os.WriteFile(filepath.Join(dir, "task.toml"), []byte(toml), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "environment")); err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(dir, "tests", "tests.json")
	if data, err := os.ReadFile(spec); err == nil { // the row's commit is not in the new repository
		data = regexp.MustCompile(`"base_commit": *"[^"]*"`).ReplaceAll(data, []byte(`"base_commit": "HEAD"`))
		if err := os.WriteFile(spec, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		at := filepath.Join(dir, "environment", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImportedTasksGrade runs imported tasks: an agent that does nothing gets no
// reward, and the row's own solution gets it.
func TestImportedTasksGrade(t *testing.T) {
	testenv.Slow(t)
	pytest := t.TempDir() // sandboxes have the system's Python and the working directory
	said, err := exec.CommandContext(t.Context(), "python3", "-m", "pip", "install", "-q", "--no-compile", "--target", pytest, "pytest").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("pip install pytest: %w: %s", err, said)
	}
	testenv.Need(t, "python", err)
	dir := t.TempDir()
	bug := "def add(a, b):\n    return a - b\n"
	run(t, dir, importer.Options{}, sweBench, sweSmith, strings.Replace(r2e, `\"TestUtil.test_b\": \"FAILED\"`, `\"TestUtil.test_b\": \"PASSED\"`, 1), plain)
	tests := "from sum import add\n\n\ndef test_zero():\n    assert add(1, 0) == 1\n"
	local(t, filepath.Join(dir, "astropy__astropy-12907"), map[string]string{"sum.py": bug, "test_sum.py": tests})
	local(t, filepath.Join(dir, "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc"), map[string]string{"sum.py": bug, "conftest.py": "", "tests/test_sum.py": tests + "\ndef test_add():\n    assert add(1, 2) == 3\n"})
	local(t, filepath.Join(dir, "namanjain12-orange3_final-2d9617bd0cb1f0ba61771258410ab8fae8e7e24d"), map[string]string{
		"run_tests.sh": "python3 -m pytest -rA r2e_tests\n", "Orange/util.py": "a", "r2e_tests/test_util.py": "class TestUtil:\n    def test_a(self): pass\n    def test_b(self): assert open('Orange/util.py').read() == 'b'\n"})
	local(t, filepath.Join(dir, "plain"), map[string]string{"x": ""})
	for _, name := range []string{"astropy__astropy-12907", "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc", "namanjain12-orange3_final-2d9617bd0cb1f0ba61771258410ab8fae8e7e24d"} {
		if err := os.CopyFS(filepath.Join(dir, name, "environment"), os.DirFS(pytest)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), testenv.Binary(t), "task", "check", "--sandbox", "local", "-o", "json", dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Count(string(out), `"ok": true`) != 4 {
		t.Errorf("%s", out)
	}
	if _, err := os.Stat("/tmp/pwned"); err == nil {
		t.Error("a test's name was run")
	}
}

func FuzzImport(f *testing.F) {
	for _, r := range []string{sweBench, sweSmith, r2e, openEnv, session, plain, "{", `{"instruction":"x","upload_files":{"a":"1","a/b":"2"}}`} {
		f.Add(r)
	}
	f.Fuzz(func(t *testing.T, row string) {
		parent := t.TempDir()
		r, err := importer.Import(strings.NewReader(row), filepath.Join(parent, "out"), importer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(parent); err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, m := range r.Made {
			if _, err := tasks.Load(filepath.Join(parent, "out", m), tasks.Options{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
