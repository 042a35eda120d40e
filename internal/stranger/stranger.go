// Package stranger opens files that other people, agents or archives may have made: only
// regular files of a bounded size, never by a link, and on request only those of this
// process's user. A FIFO, a socket or a device is refused without a wait.
package stranger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/owned"
)

// Folder is a folder with files of strangers.
type Folder struct {
	root *os.Root
	own  bool
}

// Open opens a folder that the user names; it may be a link.
func Open(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{root: root}, nil
}

// OpenOwn is Open, and refuses a folder and files in it that belong neither to this
// process's user nor to root. The error is an *owned.Error.
func OpenOwn(dir string) (*Folder, error) {
	if err := owned.Check(dir); err != nil {
		return nil, err
	}
	f, err := Open(dir)
	if err != nil {
		return nil, err
	}
	f.own = true
	info, err := f.root.Stat(".") // the folder that is open
	if err == nil {
		err = owned.CheckInfo(dir, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Close closes the folder. Files that are open stay so.
func (f *Folder) Close() { f.root.Close() }

// Folder opens a folder below this one, given with slashes.
func (f *Folder) Folder(name string) (*Folder, error) {
	if err := f.straight(name); err != nil {
		return nil, err
	}
	root, err := f.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return &Folder{root, f.own}, nil
}

// Open opens a regular file of at most limit bytes for reading. Its name has slashes.
func (f *Folder) Open(name string, limit int64) (*os.File, error) {
	if err := f.straight(name); err != nil {
		return nil, err
	}
	before, err := f.root.Lstat(name)
	if err == nil {
		err = f.check(name, before, limit) // opening a device can have effects
	}
	if err != nil {
		return nil, err
	}
	file, err := f.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = f.check(name, info, limit)
	}
	if err == nil && !os.SameFile(before, info) {
		err = fmt.Errorf("%s was replaced while it was opened", name)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Read reads a regular file of at most limit bytes.
func (f *Folder) Read(name string, limit int64) ([]byte, error) {
	file, err := f.Open(name, limit)
	if err != nil {
		return nil, err
	}
	return read(file, name, limit)
}

// Is returns an error unless there is an entry with the name. It is of any kind.
func (f *Folder) Is(name string) error {
	_, err := f.root.Lstat(name)
	return err
}

// FS returns the tree of the folder, to list it.
func (f *Folder) FS() fs.FS { return f.root.FS() }

// Names returns the names of at most most entries, in no order.
func (f *Folder) Names(most int) ([]string, error) {
	top, err := f.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer top.Close()
	names, err := top.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// IsFolder reports whether an entry is a folder, and no link to one.
func (f *Folder) IsFolder(name string) bool {
	info, err := f.root.Lstat(name)
	return err == nil && info.IsDir()
}

// straight returns an error if an element of a name is a link.
func (f *Folder) straight(name string) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("%s: it leads out of the folder", name)
	}
	for at := path.Clean(name); at != "."; at = path.Dir(at) {
		info, err := f.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the name itself, or the error comes with an element before
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a link: want a file or a folder", at)
		}
	}
	return nil
}

func (f *Folder) check(name string, info fs.FileInfo, limit int64) error {
	if f.own {
		if err := owned.CheckInfo(filepath.Join(f.root.Name(), name), info); err != nil {
			return err
		}
	}
	return regular(name, info, limit)
}

// Read reads a regular file of at most limit bytes that the user names; it may be a link.
func Read(file string, limit int64) ([]byte, error) {
	info, err := os.Stat(file)
	if err == nil {
		err = regular(file, info, limit)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(file, info, limit)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return read(f, file, limit)
}

// read reads a file whole and closes it.
func read(f *os.File, name string, limit int64) ([]byte, error) {
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit { // it grows
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

func regular(name string, info fs.FileInfo, limit int64) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s: want a regular file", name, kindOf(info.Mode()))
	}
	if info.Size() > limit {
		return fmt.Errorf("%s has %d bytes: want at most %d", name, info.Size(), limit)
	}
	return nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeSymlink != 0:
		return "a link"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	default:
		return "something else"
	}
}
