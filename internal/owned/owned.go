// Package owned refuses folders and files of other users. Another user could put
// keys or programs there that this process would use.
package owned

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Error reports a folder or a file of another user.
type Error struct {
	Path     string
	UID, Own int
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s belongs to the user %d: want a path of the user %d or of root; remove it, or name another path", e.Path, e.UID, e.Own)
}

// Check refuses a path that belongs neither to this process's user nor to root. Of
// a link, the link and its target are checked. A path that does not exist is no
// error.
func Check(path string) error { return check(path, os.Geteuid()) }

func check(path string, own int) error {
	for _, describe := range []func(string) (fs.FileInfo, error){os.Lstat, os.Stat} {
		info, err := describe(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkInfo(path, info, own); err != nil {
			return err
		}
	}
	return nil
}

// CheckInfo is Check of a file or a folder that is open.
func CheckInfo(path string, info fs.FileInfo) error { return checkInfo(path, info, os.Geteuid()) }

func checkInfo(path string, info fs.FileInfo, own int) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != own && st.Uid != 0 {
		return &Error{path, int(st.Uid), own}
	}
	return nil
}
