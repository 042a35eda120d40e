package layout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/kernel"
)

// Roots is a folder with the unpacked files of images, which sandboxes of several processes
// share. Other users cannot enter it.
type Roots struct {
	Dir string
	// Owners is true if this process can give files to any user. Otherwise all files of
	// an image belong to the user of this process.
	Owners bool
	Keep   int64 // bytes of the images that Prune leaves; 0: all
}

// Root is the folder with the files of an image. No process changes them.
type Root struct {
	Path string
	lock *os.File // shared while the root is in use
}

// Release ends the use of the root.
func (r *Root) Release() {
	if r != nil && r.lock != nil {
		r.touch()
		_ = r.lock.Close()
	}
}

// touch notes the last use, by which Prune chooses. An error of it makes the image look older.
func (r *Root) touch() {
	now := time.Now()
	_ = os.Chtimes(r.lock.Name(), now, now)
}

// version is part of the names of unpacked images. A new version leaves the images of other
// versions of turngate alone.
const version = "1"

// lockPause is the time between two looks at an image that another process unpacks.
const lockPause = 50 * time.Millisecond

// Open unpacks an image, unless the folder has it, and returns its root. A process that dies
// leaves no part of an image that another process would use. An error that wraps ErrFolder does
// not come from the image.
func (r Roots) Open(ctx context.Context, i *Image) (_ *Root, err error) {
	if i.Root != "" {
		return &Root{Path: i.Root}, nil
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("unpack the image %s: %w", i.Ref, err)
		}
	}()
	if err := r.secure(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	name := i.Digest.Encoded() + "-" + version
	if !r.Owners {
		name += "-one-user"
	}
	path := filepath.Join(r.Dir, name)
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	root := &Root{Path: path, lock: lock}
	defer func() {
		if err != nil {
			root.Release()
		}
	}()
	for { // another process may prune the image between two locks
		if err := hold(ctx, lock, unix.LOCK_SH); err != nil {
			return nil, err
		}
		if isFolder(path) {
			root.touch()
			return root, nil
		}
		if err := hold(ctx, lock, unix.LOCK_EX); err != nil {
			return nil, err
		}
		if isFolder(path) { // another process has unpacked it since
			continue
		}
		r.removeParts(path + partSuffix)
		if err := r.unpack(ctx, i, path, lock); err != nil {
			return nil, err
		}
		root.touch()
		_ = r.Prune() // an image that cannot be removed does no harm
	}
}

// Endings of the names in the folder.
const (
	lockSuffix = ".lock"
	partSuffix = ".part" // of folders with images that are not whole
)

// removeParts removes the parts of images that processes left when they died, but for own.
// A part that cannot be removed stays: it does no harm.
func (r Roots) removeParts(own string) {
	parts, err := filepath.Glob(filepath.Join(r.Dir, "*"+partSuffix))
	if err != nil {
		return
	}
	for _, part := range parts {
		if part == own {
			continue
		}
		lock, err := os.OpenFile(strings.TrimSuffix(part, partSuffix)+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			continue
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil { // no process unpacks it
			_ = os.RemoveAll(part)
		}
		_ = lock.Close()
	}
}

// secure makes the folder, and refuses one that others can write.
func (r Roots) secure() error {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return err
	}
	for _, stat := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} { // it may be a link, of this user too
		var st unix.Stat_t
		if err := stat(r.Dir, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: r.Dir, Err: err}
		}
		if int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to the user %d: want a folder of the user %d; remove it, or name another one in XDG_CACHE_HOME", r.Dir, st.Uid, os.Geteuid())
		}
	}
	return os.Chmod(r.Dir, 0o700)
}

func (r Roots) unpack(ctx context.Context, i *Image, path string, lock *os.File) (err error) {
	part := path + partSuffix
	if err := os.RemoveAll(part); err != nil { // of a process that died
		return err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(part)
		}
	}()
	if err := os.Chmod(part, 0o755); err != nil { // without the umask
		return err
	}
	if err := (&unpacking{root: part, owners: r.Owners}).unpack(ctx, i); err != nil {
		return err
	}
	if err := noteSize(lock, part); err != nil {
		return fmt.Errorf("note the size of %s: %w", part, err)
	}
	dir, err := os.Open(part)
	if err != nil {
		return err
	}
	defer dir.Close()
	// After a power failure the name must not be there without the files.
	if err := kernel.SyncDisk(dir); err != nil {
		return fmt.Errorf("write %s to the disk: %w", part, err)
	}
	return os.Rename(part, path)
}

// hold locks a file, or changes the kind of its lock.
func hold(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lockPause):
		}
	}
}
