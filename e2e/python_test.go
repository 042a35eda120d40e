package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// pythonClient is the Python client in a virtual environment of its own,
// installed as a user does.
type pythonClient struct {
	ctx       context.Context //nolint:containedctx // the test's
	dir, venv string
	env       []string
}

func newPythonClient(t *testing.T, python string, limit time.Duration) *pythonClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := &pythonClient{
		ctx: ctx, dir: filepath.Join(testenv.Root(t), "clients", "python"), venv: filepath.Join(t.TempDir(), "venv"),
		env: append(os.Environ(), "TURNGATE="+testenv.Binary(t), "PYTHONDONTWRITEBYTECODE=1"),
	}
	testenv.Need(t, "python", c.run(python, "-m", "venv", c.venv))
	return c
}

// install installs the client with some of its extras.
func (c *pythonClient) install(t *testing.T, extras string) {
	t.Helper()
	testenv.Need(t, "python", c.run(c.in("pip"), "install", "-q", "--disable-pip-version-check", "-c", "tests/constraints.txt", "."+extras))
}

// installedBeside returns a Python of a new virtual environment with the client,
// which has the packages of another Python too.
func installedBeside(t *testing.T, other string) string {
	t.Helper()
	c := newPythonClient(t, other, 10*time.Minute)
	c.install(t, "")
	folder := func(python string) string {
		out, err := exec.Command(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if err := os.WriteFile(filepath.Join(folder(c.in("python")), "beside.pth"), []byte(folder(other)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.in("python")
}

// in returns the path of a program of the environment.
func (c *pythonClient) in(name string) string { return filepath.Join(c.venv, "bin", name) }

func (c *pythonClient) run(argv ...string) error {
	cmd := exec.CommandContext(c.ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tests end their processes
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", argv, err, out)
	}
	return nil
}

// TestPythonClient installs the Python client into a new virtual environment, as
// a user does, checks its types and runs its tests against this turngate.
func TestPythonClient(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python, err := findPython()
	testenv.Need(t, "python", err)
	c := newPythonClient(t, python, 20*time.Minute)
	c.install(t, "[test]")
	t.Run("types", func(t *testing.T) {
		if err := c.run(c.in("mypy"), "--strict", "--cache-dir", t.TempDir()); err != nil {
			t.Error(err)
		}
	})
	t.Run("types of the page", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "train.py")
		harness.Must(t, os.WriteFile(file, []byte(trainersBlock(t, "python")), 0o600))
		if err := c.run(c.in("mypy"), "--strict", "--cache-dir", t.TempDir(), file); err != nil {
			t.Error(err)
		}
	})
	t.Run("tests", func(t *testing.T) {
		if err := c.run(c.in("python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"); err != nil {
			t.Error(err)
		}
	})
}

// TestPythonClientOnTheOldestPython runs the client's tests with Python 3.10, which
// is the oldest that it supports.
func TestPythonClientOnTheOldestPython(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	python, err := python310()
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	c := newPythonClient(t, python, 20*time.Minute)
	c.install(t, "[test]")
	if err := c.run(c.in("python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"); err != nil {
		t.Error(err)
	}
}

// python310 returns a Python 3.10 on the path, or one that pyenv installed.
func python310() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(home, ".pyenv", "versions", "3.10.*", "bin", "python3"))
	if err != nil {
		return "", err
	}
	for _, name := range append([]string{"python3.10"}, found...) {
		if exec.Command(name, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 10))").Run() == nil {
			return exec.LookPath(name)
		}
	}
	return "", errors.New("there is no Python 3.10 with venv")
}

// findPython returns a Python of 3.10 or later: TURNGATE_PYTHON, or one of the
// usual names.
func findPython() (string, error) {
	names := []string{os.Getenv("TURNGATE_PYTHON"), "python3", "python3.13", "python3.12", "python3.11", "python3.10"}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil && exec.Command(path, "-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))").Run() == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("none of TURNGATE_PYTHON and %v is a Python of 3.10 or later with venv", names[1:])
}
