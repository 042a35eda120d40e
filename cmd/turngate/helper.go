package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// helper returns the path of the turngate that runs in sandboxes.
func helper() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return helperBeside(self, runtime.GOOS, runtime.GOARCH)
}

// helperBeside is helper for the program at self, which was built for a system and a
// processor. Sandboxes have Linux: another system has a second program beside it.
func helperBeside(self, system, processor string) (string, error) {
	if system == "linux" {
		return self, nil
	}
	path := filepath.Join(filepath.Dir(self), "turngate-linux-"+processor)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("sandboxes need %s: want the program turngate of the same version for linux/%s there; install.sh brings it", path, processor)
	}
	return path, nil
}
