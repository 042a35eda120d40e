package tasks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Largest files of a task, in bytes, that the submitter's process reads.
const (
	maxConfigFile      = 1 << 20 // task.toml, a compose file, an env_file
	maxInstructionFile = 1 << 20
	maxReplayFile      = 64 << 20
)

// folder reads the files of a task's folder. The author of a task may be another
// person, so a link that leaves the folder, a FIFO, a device and a file over its
// bound are errors, and none of them delays the reader.
type folder struct{ dir string }

// root opens the folder. os.OpenRoot alone would wait at a FIFO.
func (f folder) root() (*os.Root, error) {
	info, err := os.Stat(f.dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: f.dir, Err: unix.ENOTDIR}
	}
	return os.OpenRoot(f.dir)
}

// has reports whether the folder has an entry of this name, of any kind.
func (f folder) has(name string) bool {
	root, err := f.root()
	if err != nil {
		return false
	}
	defer root.Close()
	_, err = root.Lstat(name)
	return err == nil
}

// stat describes a file or a folder. It follows links inside the folder.
func (f folder) stat(name string) (fs.FileInfo, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	return info, kept(err)
}

// read returns the content of a regular file of at most most bytes.
func (f folder) read(name string, most int64) ([]byte, error) {
	root, err := f.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, info, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info.Size() <= most {
		data, err := io.ReadAll(io.LimitReader(file, most+1))
		if err != nil || int64(len(data)) <= most {
			return data, err
		}
	}
	return nil, fmt.Errorf("it has more than %d bytes", most)
}

// openRegular opens a regular file below a folder. The file is looked at first,
// because opening a device can have effects, and again after opening.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := root.Stat(name)
	if err != nil {
		return nil, nil, kept(err)
	}
	if err := regular(info); err != nil {
		return nil, nil, err
	}
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, kept(err)
	}
	if info, err = file.Stat(); err == nil {
		err = regular(info)
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func regular(info fs.FileInfo) error {
	kind := "something else"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a folder"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a FIFO"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	}
	return fmt.Errorf("it is %s: want a regular file", kind)
}

// kept gives a link that leaves the folder its own error text.
func kept(err error) error {
	if err != nil && strings.Contains(err.Error(), "escapes from parent") { // package os does not export this error
		return errors.New("it is a link that leaves the task's folder: want a file inside")
	}
	return err
}

// ReadFile returns task.toml, instruction.md or another short file of a task's
// folder. It refuses links that leave the folder, special files and large files.
func ReadFile(dir, name string) ([]byte, error) {
	data, err := (folder{dir}).read(filepath.FromSlash(name), maxConfigFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
