package seal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/seal"
)

func TestASealFitsItsDataAndItsUserAlone(t *testing.T) {
	home := filepath.Join(t.TempDir(), "config", "turngate")
	mine, err := seal.Open(home)
	harness.Must(t, err)
	info, err := os.Stat(filepath.Join(home, "seal.key"))
	harness.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key has the mode %v", info.Mode())
	}
	again, err := seal.Open(home)
	harness.Must(t, err)
	theirs, err := seal.Open(t.TempDir())
	harness.Must(t, err)
	s := mine.Of([]byte("data"))
	if !again.Fits(s, []byte("data")) {
		t.Error("the seal of the same user does not fit")
	}
	if again.Fits(s, []byte("other")) || theirs.Fits(s, []byte("data")) || mine.Fits("", []byte("data")) || mine.Fits("zz", []byte("data")) {
		t.Error("a seal fits other data, or that of another user")
	}
	harness.Must(t, os.Truncate(filepath.Join(home, "seal.key"), 0))
	if _, err := seal.Open(home); err == nil {
		t.Error("an empty key was read")
	}
}
