package docker

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/harness"
)

// TestACopyHasTheDigestOfItsName: files that have changed since their digest was taken
// are an error, since all workers of an engine find a copy by its digest.
func TestACopyHasTheDigestOfItsName(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	harness.Must(t, os.WriteFile(program, []byte("old"), 0o700))
	digest, err := far.Digest(program)
	harness.Must(t, err)
	tree, err := new(far.Trees).Of(dir)
	harness.Must(t, err)
	pack := func() [2]error {
		return [2]error{packProgram(io.Discard, program, digest), packTree(io.Discard, dir, tree.Digest)}
	}
	for _, err := range pack() {
		harness.Must(t, err)
	}
	harness.Must(t, os.WriteFile(program, []byte("new"), 0o700))
	for _, err := range pack() {
		if err == nil || !strings.Contains(err.Error(), "has changed since this process began") {
			t.Errorf("got %v", err)
		}
	}
}
