package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// TestPythonAdapters runs the tests of the Python client's adapters, each in a
// Python of TURNGATE_PYTHONS that has the framework. The frameworks of "make
// adapters" are too large for every run.
func TestPythonAdapters(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	tests := []struct {
		module, part string
		files        []string
	}{
		{"openenv", "python", []string{"test_openenv.py", "test_openenv_sandbox.py", "test_openenv_server.py", "test_sglang.py"}},
		{"verifiers", "python", []string{"test_verifiers.py"}},
		{"trl", "adapters", []string{"test_trl.py", "test_trl_async.py"}},
		{"verl", "adapters", []string{"test_verl.py"}},
		{"skyrl", "adapters", []string{"test_skyrl.py"}},
		{"torch", "adapters", []string{"test_areal.py"}},
	}
	for _, tt := range tests {
		t.Run(tt.module, func(t *testing.T) {
			python := testenv.PythonFor(t, tt.part, tt.module)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			argv := []string{"-m", "pytest", "-q", "-rs", "-W", "default", "-p", "no:cacheprovider"}
			for _, file := range tt.files {
				argv = append(argv, filepath.Join("tests", "adapters", file))
			}
			cmd := exec.CommandContext(ctx, python, argv...)
			cmd.Dir = filepath.Join(testenv.Root(t), "clients", "python")
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tests end their processes
			cmd.WaitDelay = 30 * time.Second
			cmd.Env = append(os.Environ(), "TURNGATE="+testenv.Binary(t), "PYTHONPATH="+filepath.Join(cmd.Dir, "src"), "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			if strings.Contains(string(out), "SKIPPED") {
				t.Errorf("%v: tests were skipped\n%s", cmd.Args, out)
			}
		})
	}
}
