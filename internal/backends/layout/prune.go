package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// recentUse is the time after its use for which an image is not removed.
const recentUse = 10 * time.Minute

// pruneLock is held by the process that removes images.
const pruneLock = "prune" + lockSuffix

// unpacked is an image in the folder.
type unpacked struct {
	path string
	size int64
	used time.Time
}

// Prune removes the images with the oldest last use until the others have at most
// Roots.Keep bytes. It spares images that a sandbox of any process has, and images that were used in
// the last ten minutes. While another process prunes the folder, it does nothing.
func (r Roots) Prune() error {
	if r.Keep == 0 {
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(r.Dir, pruneLock), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // nothing was ever unpacked
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune unpacked images: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	} else if err != nil {
		return fmt.Errorf("prune unpacked images: %w", err)
	}
	all, err := r.list()
	if err != nil {
		return fmt.Errorf("prune unpacked images: %w", err)
	}
	var total int64
	for _, i := range all {
		total += i.size
	}
	for _, i := range all { // the oldest first
		if total <= r.Keep || time.Since(i.used) < recentUse {
			break
		}
		gone, err := remove(i.path)
		if err != nil {
			return fmt.Errorf("prune unpacked images: %w", err)
		}
		if gone {
			total -= i.size
		}
	}
	return nil
}

// list returns the images by their last use.
func (r Roots) list() ([]unpacked, error) {
	locks, err := filepath.Glob(filepath.Join(r.Dir, "*"+lockSuffix))
	if err != nil {
		return nil, err
	}
	var all []unpacked
	for _, lock := range locks {
		path := strings.TrimSuffix(lock, lockSuffix)
		info, err := os.Stat(lock)
		if err != nil || !isFolder(path) {
			continue
		}
		size, err := sizeIn(lock)
		if err != nil {
			return nil, err
		}
		all = append(all, unpacked{path, size, info.ModTime()})
	}
	slices.SortFunc(all, func(a, b unpacked) int { return a.used.Compare(b.used) })
	return all, nil
}

// remove removes an image that is not in use, and reports whether it did.
func remove(path string) (bool, error) {
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	part := path + partSuffix
	if err := os.RemoveAll(part); err != nil { // of a process that died
		return false, err
	}
	if err := os.Rename(path, part); err != nil { // a process that dies here leaves no half of an image
		return false, err
	}
	return true, os.RemoveAll(part)
}

// noteSize writes the size of a folder into the lock of its image.
func noteSize(lock *os.File, folder string) error {
	var size int64
	err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			size += st.Blocks * 512 / max(int64(st.Nlink), 1)
		}
		return nil
	})
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt(strconv.AppendInt(nil, size, 10), 0)
	}
	return err
}

// sizeIn reads the size that noteSize wrote.
func sizeIn(lock string) (int64, error) {
	f, err := os.Open(lock)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return 0, err
	}
	size, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the size of an image in %s: %w", lock, err)
	}
	return size, nil
}
