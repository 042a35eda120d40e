package box

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWritableMounts(t *testing.T) {
	dir := t.TempDir()
	info := strings.ReplaceAll(`30 20 0:29 / DIR rw,relatime - overlay overlay rw
31 30 0:30 / /proc rw,nosuid - proc proc rw
32 30 0:31 / /dev rw,nosuid - tmpfs tmpfs rw
33 30 8:1 /helper /etc/hostname rw,relatime - ext4 /dev/sda1 rw
34 30 8:1 /agents DIR ro,relatime - ext4 /dev/sda1 rw
short line
`, "DIR", dir)
	if got := writableMounts(strings.NewReader(info), []string{dir}); len(got) != 0 {
		t.Errorf("got %v, want none: it is skipped", got)
	}
	if got := writableMounts(strings.NewReader(info), nil); len(got) != 1 || got[0] != dir {
		t.Errorf("got %v, want %s", got, dir)
	}
}

// TestMeasure checks that measure counts files written since a time and no
// others.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, size int) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("image/large", 8<<20) // written before the box began
	var began unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "image/large"), &began); err != nil {
		t.Fatal(err)
	}
	var since unix.Timespec
	for since = began.Ctim; since == began.Ctim; { // wait for the next tick of the file system's clock
		put("tick", 0)
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, "tick"), &st); err != nil {
			t.Fatal(err)
		}
		since = st.Ctim
	}
	used := func(bound int64) int64 {
		m := measure{since: since, bound: bound}
		m.folder(unix.AT_FDCWD, dir, 0)
		return m.bytes
	}
	between := func(what string, low, high int64) {
		t.Helper()
		if got := used(1 << 40); got < low || got > high {
			t.Errorf("%s: %d bytes, want %d to %d", what, got, low, high)
		}
	}
	between("before anything was written", 0, 64<<10)
	put("new/file", 1<<20)
	between("a new file", 1<<20, 1<<20+128<<10)
	if err := os.Link(filepath.Join(dir, "new/file"), filepath.Join(dir, "new/again")); err != nil {
		t.Fatal(err)
	}
	between("a second name", 1<<20, 1<<20+128<<10)
	sparse, err := os.Create(filepath.Join(dir, "new/sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sparse.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	sparse.Close()
	between("a sparse file", 1<<20, 1<<20+128<<10)
	if err := os.Symlink("/", filepath.Join(dir, "new/link")); err != nil {
		t.Fatal(err)
	}
	t.Run("a mounted file", func(t *testing.T) {
		mounted := filepath.Join(t.TempDir(), "mounted")
		if err := os.WriteFile(mounted, make([]byte, 8<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		put("new/mounted", 0)
		err := unix.Mount(mounted, filepath.Join(dir, "new/mounted"), "", unix.MS_BIND, "")
		if errors.Is(err, unix.EPERM) {
			t.Skip("SKIPPED: only root can mount a file")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(filepath.Join(dir, "new/mounted"), unix.MNT_DETACH)
		between("a file of another mount", 1<<20, 1<<20+128<<10)
	})
	for i := range 2000 {
		put(fmt.Sprintf("many/%d", i), 0)
	}
	between("many empty files", 1<<20+2000*inodeCost, 1<<20+2000*inodeCost+512<<10)
	if got := used(1 << 20); got <= 1<<20 || got > 2<<20 {
		t.Errorf("a walk beyond its bound counted %d bytes", got)
	}
	deep := filepath.Join(dir, "deep", strings.Repeat("d/", maxDepth+10))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := used(1 << 40); got <= 1<<40 {
		t.Errorf("folders that are nested without end counted %d bytes", got)
	}
}
