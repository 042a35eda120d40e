package far

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// TestOldFoldersOfLinesAreRemoved: those of another start of the host, or of another host with
// this home, whose lines may live. A line of this host stays.
func TestOldFoldersOfLinesAreRemoved(t *testing.T) {
	s := &server{folder: t.TempDir()}
	own, err := linesOf(s.folder)
	harness.Must(t, err)
	other := filepath.Join(filepath.Dir(own), "0f0e6a3c-0000-0000-0000-000000000000")
	for _, dir := range []string{own, other} {
		harness.Must(t, os.MkdirAll(dir, 0o700))
		harness.Must(t, socketIn(dir, "line", func(path string) error {
			l, err := net.Listen("unix", path)
			if err != nil {
				return err
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false) // the path is not that of the file
			t.Cleanup(func() { l.Close() })
			return nil
		}))
	}
	left := func() (n int) {
		for _, dir := range []string{own, other} {
			if _, err := os.Lstat(filepath.Join(dir, "line")); err == nil {
				n++
			}
		}
		return n
	}
	s.removeLines(time.Now().Add(oldLines - time.Hour))
	if n := left(); n != 2 {
		t.Errorf("%d lines are left of 2", n)
	}
	s.removeLines(time.Now().Add(oldLines + time.Hour))
	if _, err := os.Lstat(other); !os.IsNotExist(err) {
		t.Errorf("the old folder: %v", err)
	}
	if n := left(); n != 1 {
		t.Errorf("%d lines are left of 1", n)
	}
}
