package backends_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// TestEveryBackend: an entry of the list has all its fields, and the backend that
// it makes has its name.
func TestEveryBackend(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range backends.All() {
		b, err := k.New(sandboxes.Host{Helper: "/proc/self/exe", StateDir: t.TempDir()})
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if b.Name() != k.Name || seen[k.Name] || k.Works == "" || k.Remedy == "" {
			t.Errorf("%+v makes a backend named %q", k, b.Name())
		}
		seen[k.Name] = true
	}
	if len(seen) == 0 {
		t.Error("there are no backends")
	}
}

// TestDocsListEveryBackend: the tables of sandboxes in the docs have a column for
// each backend.
func TestDocsListEveryBackend(t *testing.T) {
	for file, heading := range map[string]string{
		"docs/sandboxes.md": "The backends", "docs/security.md": "Isolation of a sandbox", "docs/tasks.md": "Needs and limits",
	} {
		data, err := os.ReadFile(filepath.Join(testenv.Root(t), file))
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(data), "\n## "+heading+"\n")
		_, table, _ := strings.Cut(text, "\n| ")
		columns, _, _ := strings.Cut(table, "\n")
		for _, name := range backends.Names() {
			if !strings.Contains(columns, " "+name+" ") {
				t.Errorf("%s: the table below %q has no column for %s", file, heading, name)
			}
		}
	}
}
