package tasks_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/tasks"
)

// taskOf makes a task with this task.toml, a verifier and a solution.
func taskOf(t *testing.T, toml string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"instruction.md": "Do it.", "task.toml": toml, "tests/test.sh": "true\n", "solution/solve.sh": "true\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNetworks(t *testing.T) {
	for _, tt := range []struct {
		name, toml              string
		sandbox, agent, verify  string
		allow, agents, verifies []string
		bad                     string
	}{
		{name: "nothing named", sandbox: "none"},
		{name: "the older key", toml: "[environment]\nallow_internet = true", sandbox: "open"},
		{name: "the newer key wins", toml: "[environment]\nallow_internet = true\nnetwork_mode = 'no-network'", sandbox: "none"},
		{name: "entries are put in their normal form", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['*.Debian.ORG.', '192.0.2.0/24', '2001:DB8::0:1', '192.0.2.7']",
			sandbox: "allowlist", allow: []string{"*.debian.org", "192.0.2.0/24", "2001:db8::1", "192.0.2.7"}},
		{name: "phases differ", toml: "[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['pypi.org']",
			sandbox: "open", agent: "none", verify: "allowlist", verifies: []string{"pypi.org"}},
		{name: "a mode that is not known", toml: "[environment]\nnetwork_mode = 'bridge'", bad: `environment.network_mode: "bridge"`},
		{name: "hosts without a list", toml: "[agent]\nallowed_hosts = ['a.b']", bad: "agent.allowed_hosts"},
		{name: "an address of a page", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['https://a.b/']", bad: "environment.allowed_hosts"},
		{name: "a port", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.b:443']", bad: "environment.allowed_hosts"},
		{name: "bits behind a range", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['192.0.2.1/24']", bad: "environment.allowed_hosts"},
		{name: "a star inside", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.*.b']", bad: "environment.allowed_hosts"},
		{name: "a star for an address", toml: "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['*.192.0.2.1']", bad: "environment.allowed_hosts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			task, err := tasks.Load(taskOf(t, tt.toml), tasks.Options{})
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) {
					t.Fatalf("got %v, want an error that names %s", err, tt.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := task.Request
			if r.Sandbox.Network != tt.sandbox || r.Agent.Network != tt.agent || r.Verify.Network != tt.verify ||
				!slices.Equal(r.Sandbox.Allow, tt.allow) || !slices.Equal(r.Agent.Allow, tt.agents) || !slices.Equal(r.Verify.Allow, tt.verifies) {
				t.Errorf("got sandbox %s %v, agent %s %v, verifier %s %v", r.Sandbox.Network, r.Sandbox.Allow, r.Agent.Network, r.Agent.Allow, r.Verify.Network, r.Verify.Allow)
			}
			if len(task.Warnings) > 0 {
				t.Errorf("warnings: %v", task.Warnings)
			}
		})
	}
}

func TestVariablesThatAreTemplates(t *testing.T) {
	task, err := tasks.Load(taskOf(t, "[verifier.env]\nA = '${SET}'\nB = '${UNSET:-x:-y}'\nC = '${SET} and ${SET}'\nD = 'a${SET}'\n[solution.env]\nE = '${SET:-z}'\n"),
		tasks.Options{Env: map[string]string{"SET": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"A": "1", "B": "x:-y", "C": "${SET} and ${SET}", "D": "a${SET}"} {
		if got := task.Request.Verify.Env[name]; got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	if task.Solution["E"] != "1" {
		t.Errorf("the solution's variables: %v", task.Solution)
	}
}

// TestANetworkByDefaultIsNoted: the default network differs from Harbor's.
func TestANetworkByDefaultIsNoted(t *testing.T) {
	const text = ".network_mode is not set: the default is no-network here and public in Harbor"
	first, second := "task.toml: environment"+text, "task.toml: verifier.environment"+text
	for toml, want := range map[string][]string{
		"":                                       {first},
		"[agent]\nnetwork_mode = 'public'":       {first},
		"[environment]\nallow_internet = false":  nil,
		"[environment]\nallow_internet = true":   nil,
		"[environment]\nnetwork_mode = 'public'": nil,
		"[environment]\nnetwork_mode = 'no-network'\n[verifier.environment]\ncpus = 1":                 {second},
		"[verifier.environment]\nallow_internet = false\n[[steps]]\nname = 's'\n[[steps]]\nname = 't'": {first},
	} {
		dir := taskOf(t, toml)
		for _, step := range []string{"s", "t"} {
			if err := os.MkdirAll(filepath.Join(dir, "steps", step), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "steps", step, "instruction.md"), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		task, err := tasks.Load(dir, tasks.Options{})
		if err != nil {
			t.Fatal(err)
		}
		notes := task.Request.Task.Notes
		if !slices.Equal(notes, want) {
			t.Errorf("%q: notes %q, want %q", toml, notes, want)
		}
		if left := tasks.WithoutNetworkNotes(append(notes, "other")); !slices.Equal(left, []string{"other"}) {
			t.Errorf("%q: left %q", toml, left)
		}
	}
}
