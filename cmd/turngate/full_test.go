package main_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/testenv"
)

// TestARunThatCannotWriteEnds: a run under a limit of files, or with a full disk, ends
// with an error that names the path and the reason. It reports no result.
func TestARunThatCannotWriteEnds(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	full := func(t *testing.T, size string, fill bool) string {
		dir := t.TempDir()
		var err error
		if os.Geteuid() != 0 {
			err = errors.New("only root mounts a file system")
		} else {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
		}
		testenv.Need(t, "mount", err)
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		if fill {
			_ = os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 4<<20), 0o600) // it writes all that fits
		}
		return dir
	}
	for name, tt := range map[string]struct {
		prepare func(t *testing.T) (env, out string)
		limit   string // of the size of a file, for ulimit -f
		path    string // a part of the path in the error
		reason  string
	}{
		"a limit of files": {
			func(t *testing.T) (string, string) { return t.TempDir(), filepath.Join(t.TempDir(), "out") },
			"60", "nats", "file too large",
		},
		"a full disk of temporary files": {
			func(t *testing.T) (string, string) { return full(t, "2m", false), filepath.Join(t.TempDir(), "out") },
			"unlimited", "turngate-run-", "no space left",
		},
		"a full disk of results": {
			func(t *testing.T) (string, string) { return t.TempDir(), filepath.Join(full(t, "1m", true), "out") },
			"unlimited", "out", "no space left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp, out := tt.prepare(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -f "$1"; shift; exec "$@"`, "sh", tt.limit, binary, "run", "examples/tasks/hello",
				"--trainer", "replay:examples/tasks/hello/replay.yaml", "-n", "40", "--out", out)
			cmd.Dir, cmd.Env = testenv.Root(t), append(os.Environ(), "TMPDIR="+tmp)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			last := lines[len(lines)-1]
			if ctx.Err() != nil || cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "turngate: ") || !strings.Contains(last, tt.path) || !strings.Contains(last, tt.reason) {
				t.Errorf("%v, %v:\n%s", err, ctx.Err(), stderr.String())
			}
			if stdout.Len() > 0 || strings.Contains(stderr.String(), "reward 0") {
				t.Errorf("results were reported: %s%s", stdout.String(), stderr.String())
			}
		})
	}
}
