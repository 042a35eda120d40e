package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Python returns the path of a Python that can import a module: one of the list
// TURNGATE_PYTHONS, which .ci/run sets. Packages that exclude each other need more
// than one.
func Python(t testing.TB, module string) string {
	t.Helper()
	return PythonFor(t, "python", module)
}

// PythonFor is Python for a module that belongs to a feature, see Need.
func PythonFor(t testing.TB, feature, module string) string {
	t.Helper()
	var wrong []error
	for _, python := range filepath.SplitList(os.Getenv("TURNGATE_PYTHONS")) {
		said, err := exec.Command(python, "-c", "import "+module).CombinedOutput()
		if err == nil {
			return python
		}
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		wrong = append(wrong, fmt.Errorf("%s: %w: %s", python, err, lines[len(lines)-1]))
	}
	if len(wrong) == 0 {
		wrong = append(wrong, errors.New("the variable is empty"))
	}
	Need(t, feature, fmt.Errorf("TURNGATE_PYTHONS names no Python with the module %s: %w", module, errors.Join(wrong...)))
	return ""
}
