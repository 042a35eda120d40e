package box

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// nest makes folders in folders by way of descriptors: their path is too long
// to be named.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
}

func TestATreeOfAnyDepthIsRemoved(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "top")
	if err := os.MkdirAll(filepath.Join(top, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "a/file", "a/b/file", ".turngate-removed-1"} {
		if err := os.WriteFile(filepath.Join(top, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(top, "a", "link")); err != nil {
		t.Fatal(err)
	}
	nest(t, top, 20_000)
	if err := (&walker{}).removeAll(top); err != nil {
		t.Fatalf("%.500s", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Fatalf("got %v, %v", left, err)
	}
	if _, err := os.Stat("/etc"); err != nil {
		t.Fatal(err)
	}
	if err := (&walker{}).removeAll(top); err != nil {
		t.Fatalf("a missing tree: %v", err)
	}
}

// closeFor65534 gives a folder lists of access that shut out the user 65534. It does
// nothing on a file system without such lists.
func closeFor65534(dir string) error {
	list := binary.LittleEndian.AppendUint32(nil, 2) // version
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, math.MaxUint32}, {2, 0, 65534}, {4, 7, math.MaxUint32}, {16, 7, math.MaxUint32}, {32, 7, math.MaxUint32}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		if err := unix.Setxattr(dir, name, list, 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return nil
}

func TestAnEmptyFolderReplacesTheOldContent(t *testing.T) {
	me := account{uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}
	for name, spoil := range map[string]func(dir, outside string) error{
		"nothing":               func(string, string) error { return nil },
		"a file above":          func(dir, _ string) error { return os.WriteFile(filepath.Join(dir, "logs"), nil, 0o600) },
		"a link above":          func(dir, outside string) error { return os.Symlink(outside, filepath.Join(dir, "logs")) },
		"a dangling link":       func(dir, _ string) error { return os.Symlink("/nowhere/at/all", filepath.Join(dir, "logs")) },
		"a full folder":         func(dir, _ string) error { return os.MkdirAll(filepath.Join(dir, "logs/verifier/x/y"), 0o700) },
		"a closed folder above": func(dir, _ string) error { return os.Mkdir(filepath.Join(dir, "logs"), 0) },
		"a closed folder": func(dir, _ string) error {
			return errors.Join(os.MkdirAll(filepath.Join(dir, "logs/verifier"), 0o755), os.Chmod(filepath.Join(dir, "logs/verifier"), 0))
		},
		"lists of access": func(dir, _ string) error {
			at := filepath.Join(dir, "logs/verifier")
			return errors.Join(os.MkdirAll(at, 0o755), closeFor65534(filepath.Dir(at)), closeFor65534(at))
		},
		"a link": func(dir, outside string) error {
			if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
				return err
			}
			return os.Symlink(outside, filepath.Join(dir, "logs/verifier"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			keep := filepath.Join(outside, "verifier", "keep")
			if err := os.MkdirAll(keep, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := spoil(dir, outside); err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(dir, "logs", "verifier")
			if err := makeEmpty(at, 0o777, &me); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(at)
			if err != nil || !info.IsDir() || info.Mode().Perm() != 0o777 {
				t.Fatalf("got %v, %v", info, err)
			}
			if left, err := os.ReadDir(at); err != nil || len(left) != 0 {
				t.Fatalf("got %v, %v", left, err)
			}
			if above, err := os.Stat(filepath.Dir(at)); err != nil || above.Mode().Perm()&0o111 != 0o111 {
				t.Fatalf("others cannot reach it: %v, %v", above.Mode(), err)
			}
			for _, list := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
				for _, of := range []string{at, filepath.Dir(at)} {
					if n, err := unix.Lgetxattr(of, list, nil); err == nil {
						t.Fatalf("%s has %s of %d bytes", of, list, n)
					}
				}
			}
			if _, err := os.Stat(keep); err != nil {
				t.Fatalf("a link was followed: %v", err)
			}
		})
	}
}

// TestAFolderAboveThatCannotBeChangedStays needs root for the mount.
func TestAFolderAboveThatCannotBeChangedStays(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: only root can mount")
	}
	me := account{uid: uint32(os.Getuid()), gid: uint32(os.Getgid())}
	above := filepath.Join(t.TempDir(), "above")
	at := filepath.Join(above, "logs")
	if err := errors.Join(os.Mkdir(above, 0o700), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(above, above, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("no mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(above, unix.MNT_DETACH) })
	inner := t.TempDir()
	if err := os.WriteFile(filepath.Join(inner, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(inner, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	if err := unix.Mount("", above, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := makeEmpty(at, 0o777, &me); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(at); err != nil || len(left) != 0 {
		t.Errorf("got %v, %v", left, err)
	}
}

func TestALongListIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "0")
	if err := os.WriteFile(first, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 20_000; i++ {
		if err := os.Link(first, filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := (&walker{}).listDir(dir, 20_000); err != nil || len(list) != 20_000 {
		t.Fatalf("got %d, %v", len(list), err)
	}
	var large *tooLargeError
	if _, err := (&walker{}).listDir(dir, 19_999); !errors.As(err, &large) {
		t.Fatalf("got %v", err)
	}
}

// TestAWalkIsBounded checks that files that are not packed count, too.
func TestAWalkIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 300 {
		at := filepath.Join(dir, strconv.Itoa(i%3))
		if err := errors.Join(os.MkdirAll(at, 0o755), os.Symlink("nowhere", filepath.Join(at, strconv.Itoa(i)))); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := (&walker{}).tarTree(dir, sandboxes.TarOptions{Limit: 1 << 20}, 303, &out); err != nil {
		t.Fatal(err)
	}
	var large *tooLargeError
	if err := (&walker{}).tarTree(dir, sandboxes.TarOptions{Limit: 1 << 20}, 302, io.Discard); !errors.As(err, &large) {
		t.Errorf("one file too many: %v", err)
	}
	if err := (&walker{}).tarTree(dir, sandboxes.TarOptions{Limit: 1 << 20, Exclude: []string{"0", "1", "2"}}, 3, io.Discard); err != nil {
		t.Errorf("excluded folders are not read: %v", err)
	}
	if err := (&walker{}).tarTree(filepath.Join(dir, "missing"), sandboxes.TarOptions{Limit: 1 << 20}, 3, io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing folder: %v", err)
	}
	var names []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if want := []string{"./", "0/", "1/", "2/"}; !slices.Equal(names, want) {
		t.Errorf("packed %q, want %q", names, want)
	}
}

// TestNoOtherUserReplacesAFolderOfItsOwner: the folder above belongs to another user, or
// is one that all may write.
func TestNoOtherUserReplacesAFolderOfItsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root gives folders to other users")
	}
	const agent, verifier = 1234, 1235
	for _, tt := range []struct {
		uid        int
		was, is    os.FileMode // of the folder above
		mode       os.FileMode // of the folder
		uidWanted  int
		ownerAbove string
	}{
		{agent, 0o755, 0o755, 0o755, 0, "the agent's"},
		{agent, 0o777 | os.ModeSticky, 0o777 | os.ModeSticky, 0o755, 0, "the agent's, sticky"},
		{0, 0o777, 0o755, 0o755, 0, "anyone's"},
		{0, 0o777 | os.ModeSticky, 0o777 | os.ModeSticky, 0o755, 0, "as /tmp"},
		{verifier, 0o775, 0o755, 0o755, verifier, "the owner's"},
		{agent, 0o775, 0o775, 0o777, agent, "of a folder for all"},
	} {
		above := filepath.Join(t.TempDir(), "logs")
		if err := errors.Join(os.Mkdir(above, 0o700), os.Chmod(above, tt.was), os.Chown(above, tt.uid, tt.uid)); err != nil {
			t.Fatal(err)
		}
		if err := makeEmpty(filepath.Join(above, "verifier"), tt.mode, &account{uid: verifier, gid: verifier}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(above)
		if err != nil {
			t.Fatal(err)
		}
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != tt.uidWanted || info.Mode()&^os.ModeDir != tt.is {
			t.Errorf("%s: uid %d, mode %v", tt.ownerAbove, uid, info.Mode())
		}
	}
}
