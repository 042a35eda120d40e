package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/testenv"
)

// TestAgentCheck checks an agent that needs no installation, and an agent with a
// broken program.
func TestAgentCheck(t *testing.T) {
	binary := testenv.Binary(t)
	cache := t.TempDir()
	good := turngate(t, binary, "agent", "ls", "--check", "--agents", cache)
	if good.code != 0 || strings.Count(good.out, "\n") != 2 || !strings.Contains(good.out, "mini") || !strings.HasSuffix(strings.TrimSpace(good.out), "ok") {
		t.Errorf("%+v", good)
	}
	spec, err := agents.Find(agents.All(), "pi")
	if err != nil {
		t.Fatal(err)
	}
	c := agents.Cache{Dir: cache}
	for _, p := range spec.Packages { // folders without a program
		if err := os.MkdirAll(filepath.Join(c.Path(spec), p.Dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bad := turngate(t, binary, "agent", "ls", "--check", "--agents", cache)
	if bad.code != 1 || !strings.Contains(bad.out, "\npi ") || strings.Count(bad.out, " ok\n") != 1 {
		t.Errorf("%+v", bad)
	}
	for _, args := range [][]string{{"-j", "0"}, {"--sandbox", "docker"}, {"--agent-timeout", "-1s"}} {
		if got := turngate(t, binary, append([]string{"agent", "ls", "--check"}, args...)...); got.code != 2 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
