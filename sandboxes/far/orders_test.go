package far

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes/local"
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
