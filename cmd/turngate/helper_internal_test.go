package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
)

// Sandboxes have Linux, so a turngate for macOS takes the one for Linux that is beside it.
func TestTheProgramOfSandboxes(t *testing.T) {
	dir := t.TempDir()
	self, linux := filepath.Join(dir, "turngate"), filepath.Join(dir, "turngate-linux-arm64")
	if got, err := helperBeside(self, "linux", "arm64"); err != nil || got != self {
		t.Errorf("on Linux: %q, %v", got, err)
	}
	if _, err := helperBeside(self, "darwin", "arm64"); err == nil || !strings.Contains(err.Error(), "sandboxes need "+linux) {
		t.Errorf("without the program: %v", err)
	}
	harness.Must(t, os.WriteFile(linux, nil, 0o700))
	if got, err := helperBeside(self, "darwin", "arm64"); err != nil || got != linux {
		t.Errorf("on macOS: %q, %v", got, err)
	}
}
