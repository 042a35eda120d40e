package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/tasks"
)

func TestVariablesForTasks(t *testing.T) {
	t.Setenv("FROM_HERE", "here")
	file := filepath.Join(t.TempDir(), "vars.env")
	if err := os.WriteFile(file, []byte("# of the user\nFROM_FILE='a b'\nFROM_HERE=file\nREFERS=${FROM_HERE}-${HOME}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := taskEnv{taskEnv: []string{"FROM_HERE", "SET=x=y"}, taskEnvFile: file}
	got, err := e.values()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"FROM_FILE": "a b", "FROM_HERE": "here", "SET": "x=y", "REFERS": "file-"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for field, wrong := range map[string]taskEnv{"--task-env: the variable NOT_SET": {taskEnv: []string{"NOT_SET"}}, "--task-env-file": {taskEnvFile: file + ".none"}, `--task-env: "=x"`: {taskEnv: []string{"=x"}}} {
		if err := wrong.check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

// TestVariablesFromAPipe: the file of variables is read once, though each task gets them.
func TestVariablesFromAPipe(t *testing.T) {
	for text, works := range map[string]bool{"A=1\n": true, "A='1\n": false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.WriteString(text) // fits into the pipe
		w.Close()
		e := taskEnv{taskEnvFile: fmt.Sprintf("/proc/self/fd/%d", r.Fd())}
		for try := range 3 {
			if got, err := e.values(); (err == nil) != works || works && got["A"] != "1" {
				t.Errorf("%q: reading %d: got %v, %v", text, try, got, err)
			}
		}
		r.Close()
	}
}

// TestQuestionsAboutVariables: a question names the task, the variable and the
// field, and its answer holds for this task or for all.
func TestQuestionsAboutVariables(t *testing.T) {
	t.Setenv("ONE", "1")
	t.Setenv("TWO", "2")
	t.Setenv("THREE", "3")
	first := &tasks.Task{Dir: "first", Missing: []tasks.Missing{{Name: "ONE", Where: "verifier.env.A"}, {Name: "TWO", Where: "b"}, {Name: "THREE", Where: "c"}, {Name: "NOT_SET", Where: "d"}}}
	second := &tasks.Task{Dir: "second", Missing: first.Missing}
	var e taskEnv
	ask := func(task *tasks.Task, answers ...string) (string, bool) {
		t.Helper()
		var out bytes.Buffer
		more, err := e.ask(t.Context(), &lines{answers}, &out, task)
		if err != nil {
			t.Fatal(err)
		}
		return out.String(), more
	}
	text, more := ask(first, "y\n", "a\n", "x\n")
	if !more || strings.Count(text, "?") != 3 || !strings.Contains(text, "task first asks for your variable ONE (verifier.env.A)") || strings.Contains(text, "NOT_SET") {
		t.Errorf("asked: %s", text)
	}
	if text, more := ask(first); more || text != "" {
		t.Errorf("asked again: %s", text)
	}
	if got, err := e.values(); err != nil || !maps.Equal(got, map[string]string{"TWO": "2"}) || e.own["first"]["ONE"] != "1" {
		t.Errorf("values %v, of the first task %v, %v", got, e.own, err)
	}
	second.Missing = []tasks.Missing{{Name: "ONE"}, {Name: "THREE"}}
	if text, more := ask(second, "\n"); more || !strings.Contains(text, "ONE") || strings.Contains(text, "THREE") || len(e.own["second"]) != 0 {
		t.Errorf("the second task: %s", text)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	read, write := io.Pipe()
	defer write.Close()
	if _, err := e.ask(ended, read, io.Discard, &tasks.Task{Dir: "third", Missing: first.Missing[:1]}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupt of the question: %v", err)
	}
}

// lines answers each read with one line.
type lines struct{ left []string }

func (l *lines) Read(p []byte) (int, error) {
	if len(l.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, l.left[0])
	l.left = l.left[1:]
	return n, nil
}

func TestMissingVariablesAreNamedOnce(t *testing.T) {
	t.Setenv("SET_HERE", "secret")
	var out bytes.Buffer
	missing := []tasks.Missing{{Name: "SET_HERE", Where: "x"}, {Name: "EMPTY", Where: "y", Empty: true}, {Name: "DEFAULT", Where: "z"}}
	printMissing(&out, &tasks.Task{Dir: "a", Missing: missing}, &tasks.Task{Dir: "b", Missing: missing})
	want := "not given: the variable EMPTY (y of a) and 1 more task; --task-env EMPTY gives it\nnot given: the variable SET_HERE (x of a) and 1 more task; --task-env SET_HERE gives it\n"
	if out.String() != want {
		t.Errorf("got %q", out.String())
	}
}
