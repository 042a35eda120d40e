package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
)

func ownerOf(t *testing.T, state string) string {
	t.Helper()
	owner, err := worker.OwnerOf("w1", state)
	harness.Must(t, err)
	return owner
}

// TestAStateFolderHasOneOwner by all its paths, and where it is moved to.
func TestAStateFolderHasOneOwner(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	harness.Must(t, err)
	state, link, lost := filepath.Join(dir, "state"), filepath.Join(dir, "link"), filepath.Join(dir, "other")
	harness.Must(t, os.Mkdir(state, 0o700))
	harness.Must(t, os.Symlink(state, link))
	byLink := ownerOf(t, link)
	if got := ownerOf(t, state); got != byLink {
		t.Errorf("the owner is %s by a link and %s by the folder", byLink, got)
	}
	harness.Must(t, os.Rename(state, lost))
	if got := ownerOf(t, lost); got != byLink {
		t.Errorf("the owner was %s, and is %s after a move", byLink, got)
	}
	harness.Must(t, os.Mkdir(state, 0o700))
	if got := ownerOf(t, state); got != byLink {
		t.Errorf("the owner was %s, and is %s after the loss of the folder", byLink, got)
	}
	second := filepath.Join(dir, "second")
	harness.Must(t, os.Mkdir(second, 0o700))
	if got := ownerOf(t, second); got == byLink {
		t.Errorf("two folders have the owner %s", got)
	}
}

// TestAWorkerOfTheLongestNameHasAnOwner: a name may have 40 characters.
func TestAWorkerOfTheLongestNameHasAnOwner(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("w", 40)
	harness.Must(t, schema.CheckToken("worker", name))
	if owner, err := worker.OwnerOf(name, t.TempDir()); err != nil || !strings.HasPrefix(owner, name+"-") {
		t.Errorf("the owner %q, %v", owner, err)
	}
}

// TestAnOwnerThatCannotBeRead names the file.
func TestAnOwnerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(state, "worker.owner"), []byte("a b"), 0o600))
	for _, dir := range []string{state, filepath.Join(state, "none")} {
		if got, err := worker.OwnerOf("w1", dir); err == nil {
			t.Errorf("the owner in %s is %s", dir, got)
		}
	}
}
