package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/taskcheck"
	"github.com/turngate/turngate/internal/testenv"
)

const passesWhenDone = "#!/bin/sh\ntest -e done && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"

// checkTasks makes a folder with a task for each cause that a machine without
// Docker can produce.
func checkTasks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, files := range map[string]map[string]string{
		"good":      {"tests/test.sh": passesWhenDone, "solution/solve.sh": "#!/bin/sh\ntouch done\n"},
		"unsolved":  {"tests/test.sh": passesWhenDone},
		"free":      {"tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n", "solution/solve.sh": "#!/bin/sh\n"},
		"oracle":    {"tests/test.sh": passesWhenDone, "solution/solve.sh": "#!/bin/sh\nexit 3\n"},
		"no number": {"tests/test.sh": "#!/bin/sh\necho hm\n"},
		"no tests":  {},
		"time":      {"task.toml": "[verifier]\ntimeout_sec = 0.5\n", "tests/test.sh": "#!/bin/sh\nsleep 60\n"},
		"setup":     {"task.toml": "[turngate]\nsetup = ['exit 4']\n", "tests/test.sh": passesWhenDone},
		"needs":     {"task.toml": "[environment]\ngpus = 1\n", "tests/test.sh": passesWhenDone},
		"system":    {"task.toml": "[environment]\nos = 'windows'\n", "tests/test.sh": passesWhenDone},
		"image":     {"environment/Dockerfile": "FROM x\n", "tests/test.sh": passesWhenDone},
		"load":      {"task.toml": "[agent]\ntimeout_sec = -1\n[environment]\nmemory = 'x'\n"},
	} {
		for file, text := range files {
			path := filepath.Join(dir, name, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "instruction.md"), []byte("Do it."), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTaskCheckNamesEachDefect(t *testing.T) {
	testenv.Slow(t)
	binary := testenv.Binary(t)
	dir, state := checkTasks(t), t.TempDir()
	args := []string{"task", "check", "--sandbox", "local", "-j", "4", "-o", "json", "--out", state, dir}
	got := turngate(t, binary, args...)
	var reports []taskcheck.Report
	if err := json.Unmarshal([]byte(got.out), &reports); err != nil || got.code != 1 {
		t.Fatalf("%v: %+v", err, got)
	}
	said := map[string]string{}
	for _, r := range reports {
		var causes []string
		for _, d := range r.Defects {
			causes = append(causes, string(d.Cause))
		}
		said[filepath.Base(r.Dir)] = strings.Join(causes, ",")
		if r.OK != (len(r.Defects) == 0) {
			t.Errorf("%+v", r)
		}
	}
	for name, want := range map[string]string{
		"good": "", "unsolved": "", "free": "free", "oracle": "oracle", "no number": "no number", "no tests": "no number",
		"time": "time", "setup": "setup", "needs": "needs", "system": "needs", "image": "needs", "load": "load,load",
	} {
		if causes, ok := said[name]; !ok || causes != want {
			t.Errorf("%s: got %q, want %q", name, causes, want)
		}
	}
	again := turngate(t, binary, args...)
	if err := json.Unmarshal([]byte(again.out), &reports); err != nil {
		t.Fatalf("%v: %+v", err, again)
	}
	for _, r := range reports {
		if loaded := r.Key != ""; r.Recalled != loaded {
			t.Errorf("%s was checked again", r.Dir)
		}
	}
	table := turngate(t, binary, "task", "check", "--sandbox", "local", "--out", state, dir)
	if table.code != 1 || !strings.Contains(table.out, "\nok         2\n") || !strings.Contains(table.out, "\nno number  2\n") || !strings.Contains(table.errOut, "[12/12]") {
		t.Errorf("%+v", table)
	}
}
