package tasks

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// keysOf lists the keys from which a struct is read.
func keysOf(t reflect.Type, prefix string) (out []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("toml")
		if name == "" && f.Anonymous {
			out = append(out, keysOf(f.Type, prefix)...)
			continue
		}
		key := prefix + name
		out = append(out, key)
		out = append(out, keysOf(f.Type, key+".")...)
	}
	return out
}

// documented returns the keys and the tests in the table of docs/tasks.md.
func documented(t *testing.T) (keys, named map[string]bool) {
	t.Helper()
	doc, err := os.ReadFile("../docs/tasks.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("`([^`]+)`")
	keys, named = map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.Contains(cells[3], "`Test") {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			keys[m[1]] = true
		}
		for _, m := range code.FindAllStringSubmatch(cells[3], -1) {
			named[m[1]] = true
		}
	}
	if len(keys) < 50 || len(named) < 10 {
		t.Fatalf("the table has %d keys and %d tests: the pattern is wrong", len(keys), len(named))
	}
	return keys, named
}

// inTable checks that the table has each key. A table of keys needs no row of its
// own, and a step's environment of the verifier has the task's keys.
func inTable(t *testing.T, keys map[string]bool, list []string) {
	t.Helper()
	if len(list) < 100 {
		t.Fatalf("there are only %d keys: the list is wrong", len(list))
	}
	for _, k := range list {
		if rest, ok := strings.CutPrefix(k, "steps.verifier.environment."); ok {
			k = "verifier.environment." + rest
		}
		if !keys[k] && !slices.Contains([]string{"task", "agent", "verifier", "environment", "solution", "turngate"}, k) {
			t.Errorf("docs/tasks.md says nothing of %s", k)
		}
	}
}

// TestEveryKeyOfTaskTOMLIsDocumented compares the keys of the reader with the
// table in docs/tasks.md, and checks that the tests in the table exist.
func TestEveryKeyOfTaskTOMLIsDocumented(t *testing.T) {
	keys, named := documented(t)
	inTable(t, keys, keysOf(reflect.TypeFor[config](), ""))
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		data, err := os.ReadFile(p)
		for _, m := range declared.FindAllStringSubmatch(string(data), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for n := range named {
		if !tests[n] {
			t.Errorf("docs/tasks.md names the test %s, which is not there", n)
		}
	}
}

// TestEveryKeyOfHarborIsDocumented compares the keys of Harbor's own model with
// the table in docs/tasks.md.
func TestEveryKeyOfHarborIsDocumented(t *testing.T) {
	python := testenv.HarborPython(t)
	out, err := exec.CommandContext(t.Context(), python, "-c", `
import json
from harbor.models.task.config import TaskConfig
top = TaskConfig.model_json_schema()
def keys(node, prefix):
    if "$ref" in node:
        yield from keys(top["$defs"][node["$ref"].rsplit("/", 1)[1]], prefix)
    for part in node.get("anyOf", []) + ([node["items"]] if "items" in node else []):
        yield from keys(part, prefix)
    for name, child in node.get("properties", {}).items():
        yield prefix + name
        yield from keys(child, prefix + name + ".")
print(json.dumps(sorted(set(keys(top, "")))))`).Output()
	var list []string
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil {
		t.Fatalf("the keys of Harbor's model: %v: %s", err, out)
	}
	keys, _ := documented(t)
	inTable(t, keys, list)
}

// TestKeysForImagesAndCalls: the time for an image and the number of calls are
// limits of the request; snapshot is a field of it; the kind of a GPU changes nothing.
func TestKeysForImagesAndCalls(t *testing.T) {
	task, err := Load(keyTask(t, "[environment]\nbuild_timeout_sec = 7\ngpu_types = ['H100']\n[turngate]\nmax_calls = 9\nmax_repeats = 4\nsnapshot = true\n"), Options{})
	if err != nil || !task.Request.Snapshot || task.Request.Limits.InstallMS != 7000 || task.Request.Gate.MaxCalls != 9 || task.Request.Gate.MaxRepeats != 4 || len(task.Warnings) > 0 {
		t.Errorf("got %+v, %v", task, err)
	}
}

// TestNeedsThatNoSandboxHas: a task for another system or for a TPU is refused,
// and the error names the key. It must not run and get a reward without them.
func TestNeedsThatNoSandboxHas(t *testing.T) {
	for toml, want := range map[string]string{
		"[environment]\nos = 'windows'\n":                                                     `environment.os: "windows" is a need that no sandbox meets`,
		"[environment]\ntpu = {type = 'v6e', topology = '2x4'}\n":                             `environment.tpu: "v6e 2x4" is a need that no sandbox meets`,
		"[environment.tpu]\ntype = 'v4'\n":                                                    "environment.tpu",
		"[verifier]\nenvironment_mode = 'separate'\n[verifier.environment]\nos = 'windows'\n": "verifier.environment.os",
	} {
		_, err := Load(keyTask(t, toml), Options{})
		var need *NeedError
		if !errors.As(err, &need) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", toml, err, want)
		}
	}
	var odd *Error
	var need *NeedError
	if _, err := Load(keyTask(t, "[environment]\nos = 'plan9'\n"), Options{}); !errors.As(err, &odd) || errors.As(err, &need) || odd.Field != "environment.os" {
		t.Errorf("got %v", err)
	}
	if task, err := Load(keyTask(t, "[environment]\nos = 'linux'\n"), Options{}); err != nil || len(task.Warnings) > 0 {
		t.Errorf("got %+v, %v", task, err)
	}
}

// TestKeysOfAVerifiersEnvironment: its keys describe the second sandbox. Keys
// that have no effect there are reported.
func TestKeysOfAVerifiersEnvironment(t *testing.T) {
	dir := keyTask(t, `
[environment]
build_timeout_sec = 7
[verifier.environment]
docker_image = 'judge'
cpus = 2
memory_mb = 64
storage_mb = 32
workdir = '/w'
network_mode = 'allowlist'
allowed_hosts = ['example.com']
env = { A = 'b' }
gpu_types = ['H100']
build_timeout_sec = 9
skills_dir = '/s'
[verifier.environment.healthcheck]
command = 'true'
[[verifier.environment.mcp_servers]]
name = 'm'
url = 'http://m/sse'
`)
	task, err := Load(dir, Options{})
	if err != nil || task.Request.Verify == nil || task.Request.Verify.Separate == nil || task.Request.Limits.InstallMS != 7000 {
		t.Fatalf("got %+v, %v", task, err)
	}
	s := task.Request.Verify.Separate
	if s.Image != "judge" || s.CPUs != 2 || s.MemoryBytes != 64<<20 || s.DiskBytes != 32<<20 || s.Workdir != "/w" || s.Network != schema.NetworkAllowlist || len(s.Allow) != 1 || s.Env["A"] != "b" {
		t.Errorf("got %+v", s)
	}
	var want []string
	for _, key := range []string{"build_timeout_sec", "healthcheck", "mcp_servers", "skills_dir"} {
		want = append(want, "task.toml: verifier.environment."+key+" has no effect")
	}
	if !slices.Equal(task.Warnings, want) {
		t.Errorf("warnings %q", task.Warnings)
	}
}

func keyTask(t *testing.T, toml string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"instruction.md": "x", "task.toml": toml} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
