package owned

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestPathsOfOtherUsersAreRefused asks as another user than the owner: only root
// can make a file of another user.
func TestPathsOfOtherUsersAreRefused(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, link, filepath.Join(dir, "none")} {
		if err := Check(path); err != nil {
			t.Errorf("own: %v", err)
		}
	}
	if os.Geteuid() != 0 {
		var wrong *Error
		if err := check(dir, os.Geteuid()+1); !errors.As(err, &wrong) || wrong.Path != dir {
			t.Errorf("of another user: %v", err)
		}
		return
	}
	if err := check(dir, 1000); err != nil {
		t.Errorf("of root: %v", err)
	}
	for _, path := range []string{dir, link} {
		if err := os.Lchown(path, 1000, 1000); err != nil {
			t.Fatal(err)
		}
		var wrong *Error
		if err := Check(path); !errors.As(err, &wrong) || wrong.UID != 1000 {
			t.Errorf("%s of another user: %v", path, err)
		}
		if err := check(path, 1000); err != nil {
			t.Errorf("own: %v", err)
		}
	}
}
