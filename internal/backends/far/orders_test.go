package far

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/sandboxes"
)

// TestAHostileWorkerStaysInTheFolders: names and paths that lead elsewhere are refused
// before anything happens.
func TestAHostileWorkerStaysInTheFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.alpha-1.1")
	harness.Must(t, os.WriteFile(file, []byte("1 1"), 0o600))
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "state/local/turngate-x"), 0o700))
	var out bytes.Buffer
	s := &server{in: bufio.NewReader(strings.NewReader("{}\n")), out: &out, folder: dir, local: &local.Backend{StateDir: filepath.Join(dir, "state")}}
	for _, owner := range []string{"x/../../../mine", "*", "a.b", strings.Repeat("a", 100)} {
		if a, err := s.do(context.Background(), &order{Sweep: owner}); err == nil || !strings.Contains(err.Error(), "owner") {
			t.Errorf("sweep %q: %+v, %v", owner, a, err)
		}
	}
	good := func() *create {
		return &create{Owner: "w1-0123abcd", Rollout: "alpha-1", Attempt: 1, Part: "verifier", Workdir: "/app", Mounts: []mount{{Guest: "/opt/a"}, {Guest: "/opt/ab"}}}
	}
	harness.Must(t, good().check())
	for name, change := range map[string]func(*create){
		"owner":       func(c *create) { c.Owner = "x/../../../mine" },
		"no owner":    func(c *create) { c.Owner = "" },
		"rollout":     func(c *create) { c.Rollout = "../../mine.alpha-1" },
		"part":        func(c *create) { c.Part = "/../../../mine.alpha-1.1" },
		"workdir":     func(c *create) { c.Workdir = "/../home" },
		"guest":       func(c *create) { c.Mounts[0].Guest = "/a/../../home" },
		"nested":      func(c *create) { c.Mounts[1].Guest = "/opt/a/b" },
		"nested, too": func(c *create) { c.Mounts[0].Guest = "/opt/ab/c" },
		"twice":       func(c *create) { c.Mounts[1].Guest = "/opt/a" },
		"root":        func(c *create) { c.Mounts[1].Guest = "/" },
	} {
		c := good()
		change(c)
		out.Reset()
		if code := s.create(context.Background(), c); code != 0 || !strings.Contains(out.String(), "want ") {
			t.Errorf("%s: %d, %q", name, code, out.String())
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("another file: %v", err)
	}
}

// TestAHostileHostsWordsAreBounded: its notes and reasons are short lines of text.
func TestAHostileHostsWordsAreBounded(t *testing.T) {
	long := strings.Repeat("a", 2*MaxSays) + "\x1b[2J\n"
	notes := []note{{"cpus\n", long}}
	for range 5 * maxNotes {
		notes = append(notes, note{"cpus", long})
	}
	conn, theirs, err := line.Pair()
	harness.Must(t, err)
	defer conn.Close()
	l := &Line{Host: NewHost("machine", "the machine m1"), Conn: conn, Broken: func(context.Context) error { return errors.New("broken") }}
	far := &server{out: theirs}
	harness.Must(t, far.answer(answer{Unsupported: &sandboxes.UnsupportedError{Field: "a\nb", Value: long, Reason: long}}))
	var no *sandboxes.UnsupportedError
	if _, err := l.answer(t.Context()); !errors.As(err, &no) || no.Field != "a b" || len(no.Value)+len(no.Reason) > 3*MaxSays || strings.Contains(no.Reason, "\x1b") {
		t.Errorf("got %v", err)
	}
	go func() {
		_ = far.answer(answer{Notes: notes}) // a failure shows below
		theirs.Close()
	}()
	n := 0
	s := sandboxes.Spec{Note: func(limit, text string) {
		if n++; limit != "cpus" || len(text) > MaxSays+len("…") {
			t.Errorf("the note %q, %q", limit, text)
		}
	}}
	if _, err := l.Sandbox(t.Context(), &Trees{}, "w1", s, func() error { return sandboxes.ErrLost }); err == nil || n != maxNotes {
		t.Errorf("%d notes, %v", n, err)
	}
}
