package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLinks is the most links that one path may lead through, as in Linux.
const maxLinks = 40

// walker finds files by their paths. It opens one part of a path after the
// other, so that a part that is replaced meanwhile leads nowhere else.
//
// Before an agent has run, the walker follows every link. From then on it follows
// only links that no user except root can have made or moved: they belong to
// root, as do all folders above them, and no other user may write to those
// folders. The box acts as root, so another link would give an agent the rights
// of root over the files behind it.
type walker struct {
	mu      sync.Mutex
	guarded bool
	named   string // working directory as its name; empty: it leads through no link
	real    string // and without links
}

// guard is called before an agent runs. The path to the working directory may
// lead through links of the image that a user other than root owns. They count
// as they are now.
func (w *walker) guard(workdir string) {
	w.mu.Lock()
	done := w.guarded
	w.mu.Unlock()
	if done {
		return
	}
	workdir = filepath.Clean(workdir)
	named, real := "", ""
	if dir, err := w.folder(workdir, nil, 0); err == nil {
		if real = dir.realPath(); real != workdir {
			named = workdir
		}
		dir.close()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.guarded {
		w.guarded, w.named, w.real = true, named, real
	}
}

// folder is an open folder, with the folders above it.
type folder struct {
	w      *walker
	levels []level
}

type level struct {
	fd   int // opened with O_PATH
	name string
	kept bool // the descriptor belongs to another folder
}

func (f *folder) fd() int { return f.levels[len(f.levels)-1].fd }

func (f *folder) close() {
	for _, l := range f.levels {
		if !l.kept {
			unix.Close(l.fd)
		}
	}
}

func (f *folder) push(fd int, name string) { f.levels = append(f.levels, level{fd: fd, name: name}) }

// pop leaves n levels.
func (f *folder) pop(n int) {
	for _, l := range f.levels[n:] {
		if !l.kept {
			unix.Close(l.fd)
		}
	}
	f.levels = f.levels[:n]
}

func (f *folder) realPath() string {
	names := make([]string, 0, len(f.levels))
	for _, l := range f.levels[1:] {
		names = append(names, l.name)
	}
	return "/" + strings.Join(names, "/")
}

// open opens the folder for reading.
func (f *folder) open() (*os.File, error) { return openDir(f.fd(), ".") }

// openFile opens a file of the folder. It follows no link.
func (f *folder) openFile(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(f.fd(), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// root opens "/".
func (w *walker) root() (*folder, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	return &folder{w: w, levels: []level{{fd: fd}}}, nil
}

// place replaces the name of the working directory by the real path.
func (w *walker) place(path string) (real string, guarded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rest, ok := strings.CutPrefix(path, w.named); ok && w.named != "" && (rest == "" || rest[0] == '/') {
		path = w.real + rest
	}
	return path, w.guarded
}

// folder opens a folder. If owner is not nil, it makes missing folders: the last
// one with this mode.
func (w *walker) folder(path string, owner *account, mode fs.FileMode) (*folder, error) {
	real, guarded := w.place(path)
	top, err := w.root()
	if err != nil {
		return nil, err
	}
	k := walk{at: top, floor: 1, path: path, guarded: guarded, owner: owner, mode: mode}
	if _, err := k.run(real, toFolder); err != nil {
		top.close()
		return nil, err
	}
	return top, nil
}

// file opens the folder of a file and returns the file's name there. The file may
// be missing. A link in its place is followed if follow is set.
func (w *walker) file(path string, follow bool) (*folder, string, error) {
	real, guarded := w.place(path)
	top, err := w.root()
	if err != nil {
		return nil, "", err
	}
	k := walk{at: top, floor: 1, path: path, guarded: guarded}
	to := toFile
	if follow {
		to = toTarget
	}
	name, err := k.run(real, to)
	if err != nil {
		top.close()
		return nil, "", err
	}
	return top, name, nil
}

// below is folder for a relative path that must not leave this folder.
func (f *folder) below(path string, owner *account, mode fs.FileMode) (*folder, bool, error) {
	_, guarded := f.w.place("")
	in := &folder{w: f.w}
	for _, l := range f.levels {
		l.kept = true
		in.levels = append(in.levels, l)
	}
	k := walk{at: in, floor: len(in.levels), beneath: true, path: path, guarded: guarded, owner: owner, mode: mode}
	if _, err := k.run(path, toFolder); err != nil {
		in.close()
		return nil, false, err
	}
	return in, k.made, nil
}

// The ends of a walk.
const (
	toFile   = iota // the folder of the last part
	toTarget        // the same, after links in place of the last part
	toFolder        // the folder that the last part is
)

// walk is one search of a walker.
type walk struct {
	at      *folder
	floor   int // levels that stay
	beneath bool
	path    string // as the caller named it
	guarded bool
	owner   *account
	mode    fs.FileMode
	made    bool // the last folder is new
	links   int
}

// run moves along a path and returns the name of its last part, or "." if the
// last part is a folder that is open now.
func (k *walk) run(path string, to int) (string, error) {
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if err := k.up(); err != nil {
				return "", err
			}
			continue
		}
		last := !hasMore(rest)
		fd, err := unix.Openat(k.at.fd(), part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && last && to != toFolder {
			return part, nil
		}
		if errors.Is(err, unix.ENOENT) && k.owner != nil {
			mode := fs.FileMode(0o755)
			if last {
				mode = k.mode
			}
			fd, err = makeFolder(k.at.fd(), part, mode, k.owner)
			k.made = last && err == nil
			if k.links++; errors.Is(err, unix.EEXIST) && k.links <= maxLinks { // made meanwhile
				rest = append([]string{part}, rest...)
				continue
			}
		}
		if err != nil {
			return "", &fs.PathError{Op: "open", Path: k.path, Err: err}
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return "", &fs.PathError{Op: "stat", Path: k.path, Err: err}
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFLNK && last && to == toFile:
			unix.Close(fd)
			return part, nil
		case kind == unix.S_IFLNK:
			target, err := k.follow(fd, part, &st)
			unix.Close(fd)
			if err != nil {
				return "", err
			}
			rest = append(strings.Split(target, "/"), rest...)
		case last && to != toFolder:
			unix.Close(fd)
			return part, nil
		case kind != unix.S_IFDIR:
			unix.Close(fd)
			return "", &fs.PathError{Op: "open", Path: k.path, Err: unix.ENOTDIR}
		default:
			k.at.push(fd, part)
		}
	}
	return ".", nil
}

// hasMore reports whether parts of a path lead on.
func hasMore(parts []string) bool {
	for _, p := range parts {
		if p != "" && p != "." {
			return true
		}
	}
	return false
}

// up leaves the current folder.
func (k *walk) up() error {
	switch n := len(k.at.levels); {
	case n > k.floor:
		k.at.pop(n - 1)
	case k.beneath:
		return &fs.PathError{Op: "open", Path: k.path, Err: errOutside}
	}
	return nil
}

// follow returns the target of a link. The links of /proc that lead to open
// files are texts here, too.
func (k *walk) follow(fd int, name string, st *unix.Stat_t) (string, error) {
	if k.links++; k.links > maxLinks {
		return "", &fs.PathError{Op: "open", Path: k.path, Err: unix.ELOOP}
	}
	at := filepath.Join(k.at.realPath(), name)
	if k.guarded {
		if reason := k.at.distrust(st); reason != "" {
			return "", &linkError{k.path, at, reason}
		}
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: at, Err: err}
	}
	target := string(buf[:n])
	if filepath.IsAbs(target) {
		if k.beneath {
			return "", &fs.PathError{Op: "open", Path: k.path, Err: errOutside}
		}
		k.at.pop(k.floor)
	}
	return target, nil
}

// distrust returns the reason why another user than root may have made a link
// in this folder or have moved it there; empty: none can.
func (f *folder) distrust(link *unix.Stat_t) string {
	readOnly := false
	for i, l := range f.levels {
		var st unix.Stat_t
		var vol unix.Statfs_t
		if err := errors.Join(unix.Fstat(l.fd, &st), unix.Fstatfs(l.fd, &vol)); err != nil {
			return err.Error()
		}
		if readOnly = vol.Flags&unix.ST_RDONLY != 0; readOnly {
			continue
		}
		at := (&folder{levels: f.levels[:i+1]}).realPath()
		switch {
		case st.Uid != 0:
			return fmt.Sprintf("the folder %s belongs to uid %d", at, st.Uid)
		case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
			return fmt.Sprintf("other users may write to the folder %s", at)
		}
	}
	if link.Uid != 0 && !readOnly {
		return fmt.Sprintf("it belongs to uid %d", link.Uid)
	}
	return ""
}

// makeFolder makes a folder and opens it. If another process puts something else
// in its place, its owner and mode stay as they are.
func makeFolder(at int, name string, mode fs.FileMode, owner *account) (fd int, err error) {
	if err := unix.Mkdirat(at, name, 0); err != nil {
		return -1, err
	}
	fd, err = unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&0o777 != 0 || int(st.Uid) != os.Geteuid()) {
		err = unix.EAGAIN // not the folder that this call has made: it would have no permissions
	}
	if err == nil {
		err = errors.Join(unix.Fchownat(fd, "", int(owner.uid), int(owner.gid), unix.AT_EMPTY_PATH), chmodPath(fd, mode))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ofDescriptor returns a path to an open file, for system calls that refuse a
// descriptor that was opened with O_PATH.
func ofDescriptor(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

func chmodPath(fd int, mode fs.FileMode) error {
	return unix.Chmod(ofDescriptor(fd), uint32(mode.Perm()))
}
