package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// HarborPython returns the path of a Python that has Harbor
// (https://pypi.org/project/harbor): TURNGATE_HARBOR_PYTHON, which .ci/run sets.
func HarborPython(t testing.TB) string {
	t.Helper()
	python := os.Getenv("TURNGATE_HARBOR_PYTHON")
	if python == "" {
		Need(t, "python", fmt.Errorf("TURNGATE_HARBOR_PYTHON does not name a Python that has harbor installed"))
	}
	if said, err := exec.Command(python, "-c", "import harbor").CombinedOutput(); err != nil {
		Need(t, "python", fmt.Errorf("%s has no harbor: %w: %s", python, err, strings.TrimSpace(string(said))))
	}
	return python
}
