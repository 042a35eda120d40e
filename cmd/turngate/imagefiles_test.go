package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/images"
	"github.com/turngate/turngate/tasks"
)

// TestOnlyBuildsKeepTheFilesOfTasksOpen: each open bundle takes a file and its size on
// the disk.
func TestOnlyBuildsKeepTheFilesOfTasksOpen(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"instruction.md": "x", "task.toml": "", "environment/Dockerfile": "FROM scratch\n", "tests/test.sh": "true\n"} {
		harness.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	task, err := tasks.Load(dir, tasks.Options{})
	harness.Must(t, err)
	for kind, want := range map[string]bool{images.Builds: true, images.Pulls: false, "": true} {
		of, bundle, err := imagesOfTask(task, kind)
		harness.Must(t, err)
		if bundle.Has("environment/Dockerfile") != want || (len(of) > 0) != want {
			t.Errorf("kind %q: %d images, the files are open: %t", kind, len(of), bundle.Has("environment/Dockerfile"))
		}
		harness.Must(t, bundle.Close())
	}
}
