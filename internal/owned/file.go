package owned

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OwnerFor returns the owner of a new file in a folder: if root makes it, the owner of
// the folder, so that a process without root's rights can read it.
func OwnerFor(folder string) (uid, gid int, ok bool) {
	info, err := os.Stat(folder)
	if err != nil || os.Geteuid() != 0 {
		return 0, 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(st.Uid), int(st.Gid), true
}

// Folder makes a folder of mode 0700, with the owner of OwnerFor, if it does not exist.
// It refuses one of another user unless this process is root, which manages the folders of
// others.
func Folder(dir string) error {
	_, before := os.Stat(dir)
	err := os.MkdirAll(dir, 0o700)
	if err == nil && errors.Is(before, fs.ErrNotExist) {
		if uid, gid, ok := OwnerFor(filepath.Dir(dir)); ok {
			err = os.Lchown(dir, uid, gid)
		}
	}
	if err == nil && os.Geteuid() != 0 {
		err = Check(dir)
	}
	return err
}

// Read reads a file. It refuses a file of a user that is neither root nor the owner of
// the folder, or this process's user.
func Read(file string) ([]byte, error) {
	err := Check(file)
	var other *Error
	if errors.As(err, &other) {
		if uid, _, ok := OwnerFor(filepath.Dir(file)); ok && uid == other.UID {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// Create writes a new file of mode 0600, with the owner of OwnerFor. A reader gets its
// whole content. It returns an error that is os.ErrExist if the file exists.
func Create(file string, data []byte) error { return write(file, data, os.Link) }

// Replace is Create, and replaces a file that exists.
func Replace(file string, data []byte) error { return write(file, data, os.Rename) }

func write(file string, data []byte, place func(part, file string) error) error {
	part, err := os.CreateTemp(filepath.Dir(file), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	_, err = part.Write(data)
	if uid, gid, ok := OwnerFor(filepath.Dir(file)); err == nil && ok {
		err = part.Chown(uid, gid)
	}
	if err == nil {
		err = part.Sync()
	}
	if err := errors.Join(err, part.Close()); err != nil {
		return err
	}
	return place(part.Name(), file)
}
