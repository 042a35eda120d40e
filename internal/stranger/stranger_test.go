package stranger_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/stranger"
)

// TestOnlyRegularFilesAreOpened: each other kind is refused at once, with its name and kind.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(out, "secret"), []byte("secret"), 0o600))
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "sub", "folder"), 0o700))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("text"), 0o600))
	harness.Must(t, unix.Mkfifo(filepath.Join(dir, "sub", "fifo"), 0o600))
	for name, to := range map[string]string{"out": filepath.Join(out, "secret"), "in": "file", "dots": "../sub/file", "none": "nothing", "loop": "loop"} {
		harness.Must(t, os.Symlink(to, filepath.Join(dir, "sub", name)))
	}
	harness.Must(t, os.Symlink("sub", filepath.Join(dir, "way")))
	f, err := stranger.Open(dir)
	harness.Must(t, err)
	defer f.Close()
	for name, want := range map[string]string{
		"sub/fifo": "sub/fifo is a FIFO", "sub/folder": "sub/folder is a folder", "sub/out": "sub/out is a link", "sub/in": "sub/in is a link", "sub/dots": "sub/dots is a link",
		"sub/none": "sub/none is a link", "sub/loop": "sub/loop is a link", "way/file": "way is a link", "../" + filepath.Base(out) + "/secret": "leads out", "/etc/passwd": "leads out", "sub/nothing": "no such file",
	} {
		if data, err := f.Read(name, 100); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %q, %v; want %q", name, data, err, want)
		}
	}
	if _, err := f.Folder("way"); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("got %v", err)
	}
	sub, err := f.Folder("sub")
	harness.Must(t, err)
	defer sub.Close()
	if data, err := sub.Read("file", 4); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := sub.Read("file", 3); err == nil || !strings.Contains(err.Error(), "file has 4 bytes: want at most 3") {
		t.Errorf("got %v", err)
	}
	if _, err := stranger.Read(filepath.Join(dir, "sub", "fifo"), 3); err == nil || !strings.Contains(err.Error(), "is a FIFO") {
		t.Errorf("got %v", err)
	}
	if data, err := stranger.Read(filepath.Join(dir, "sub", "out"), 9); err != nil || string(data) != "secret" {
		t.Errorf("a link that the user names: %q, %v", data, err)
	}
}

// TestFilesOfAnotherUserAreRefused where the folder must be the user's own.
func TestFilesOfAnotherUserAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	dir := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
	harness.Must(t, os.Chown(filepath.Join(dir, "file"), 1234, 1234))
	var other *owned.Error
	f, err := stranger.OpenOwn(dir)
	harness.Must(t, err)
	defer f.Close()
	if _, err := f.Read("file", 100); !errors.As(err, &other) || other.UID != 1234 {
		t.Errorf("got %v", err)
	}
	harness.Must(t, os.Chown(dir, 1234, 1234))
	if _, err := stranger.OpenOwn(dir); !errors.As(err, &other) {
		t.Errorf("got %v", err)
	}
	any, err := stranger.Open(dir)
	harness.Must(t, err)
	defer any.Close()
	if data, err := any.Read("file", 100); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
}
