package kernel_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/kernel"
)

func TestDisk(t *testing.T) {
	free, size, err := kernel.Disk(t.TempDir())
	if err != nil || free < 0 || size <= 0 || free > size {
		t.Errorf("%d of %d bytes are free, %v", free, size, err)
	}
	if _, _, err := kernel.Disk("/no/such/folder"); !os.IsNotExist(err) {
		t.Errorf("a missing folder: %v", err)
	}
}

// No child process inherits the sockets of a pair.
func TestPair(t *testing.T) {
	a, b, err := kernel.Pair()
	harness.Must(t, err)
	defer a.Close()
	defer b.Close()
	_, err = a.WriteString("hello")
	harness.Must(t, err)
	got := make([]byte, 5)
	if n, err := b.Read(got); err != nil || string(got[:n]) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	for _, f := range []*os.File{a, b} {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags %#x, %v", flags, err)
		}
	}
}

// Child processes inherit a descriptor that was replaced.
func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	harness.Must(t, err)
	defer f.Close()
	old, err := os.Open(os.DevNull)
	harness.Must(t, err)
	defer old.Close()
	harness.Must(t, kernel.Replace(int(old.Fd()), f))
	_, err = old.WriteString("there")
	harness.Must(t, err)
	if got, err := os.ReadFile(path); err != nil || string(got) != "there" {
		t.Errorf("%q, %v", got, err)
	}
	if flags, err := unix.FcntlInt(old.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	harness.Must(t, kernel.SyncDisk(f))
}
