package local

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rootPlan tells the box how to make the sandbox's root before any command runs
// in it.
type rootPlan struct {
	Binds     []bind `json:"binds"`
	DiskBytes int64  `json:"disk_bytes,omitempty"` // size of the root's tmpfs; 0: the kernel's default
	Workdir   string `json:"workdir"`
	// Links are the symbolic links of the host's root, such as /bin -> usr/bin.
	Links map[string]string `json:"links,omitempty"`
	// Image has the files of the root. Nil: it has the Binds and Links, and is empty
	// otherwise.
	Image *imagePlan `json:"image,omitempty"`
}

// bind shows one file or folder of the host, read-only unless Writable.
type bind struct {
	Host     string `json:"host"`
	Guest    string `json:"guest"`
	Device   bool   `json:"device,omitempty"` // a device node, which stays usable
	Writable bool   `json:"writable,omitempty"`
	FD       int    `json:"fd,omitempty"` // descriptor of a detached mount that the worker made
}

// hostBinds lists the host paths that every sandbox without an image shows: programs,
// libraries, and the few files of /etc that these need.
func hostBinds() (binds []bind, links map[string]string) {
	links = map[string]string{}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if target, err := os.Readlink(dir); err == nil {
			links[dir] = target
		} else if info, err := os.Stat(dir); err == nil && info.IsDir() {
			binds = append(binds, bind{Host: dir, Guest: dir})
		}
	}
	for _, path := range []string{
		"/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
		"/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/localtime", "/etc/mime.types", "/etc/protocols", "/etc/services",
	} {
		if _, err := os.Stat(path); err == nil {
			binds = append(binds, bind{Host: path, Guest: path})
		}
	}
	return binds, links
}

func devices() (binds []bind) {
	for _, dev := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		binds = append(binds, bind{Host: "/dev/" + dev, Guest: "/dev/" + dev, Device: true})
	}
	return binds
}

// openTree makes a detached copy of a mount. The process must own its mount
// namespace and have access to the path.
func openTree(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("show %s in the sandbox: %w", path, err)
	}
	return fd, nil
}

// newRoot is the mount point of the new root. It exists on every Linux. Mounts
// opened earlier give access to files below it.
const newRoot = "/tmp"

// enter replaces the process's root by the planned one. It runs as the first
// process of new user, mount, process, network and ipc namespaces. Links of an image
// lead nowhere else, since its files are looked up only after the host's root is gone.
func (p *rootPlan) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for i := range p.Binds {
		if b := &p.Binds[i]; b.FD == 0 {
			fd, err := openTree(b.Host)
			if err != nil {
				return err
			}
			b.FD = fd
		}
	}
	if p.Image != nil && p.Image.Root != "" {
		fd, err := openTree(p.Image.Root)
		if err != nil {
			return err
		}
		p.Image.fd = fd
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	options := "mode=0755"
	if p.DiskBytes > 0 {
		options = fmt.Sprintf("mode=0755,size=%d", p.DiskBytes)
	}
	if err := unix.Mount("tmpfs", newRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount the sandbox's root: %w", err)
	}
	root := newRoot
	if p.Image != nil {
		if root, err = p.Image.mount(); err != nil {
			return err
		}
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := p.folders(); err != nil {
		return err
	}
	for _, b := range p.Binds {
		if err := b.attach(); err != nil {
			return err
		}
	}
	return mountKernelFiles(proc)
}

// folder is a folder of every root, or of one without an image.
type folder struct {
	path string
	mode fs.FileMode
}

// folders makes what every root has, and without an image the rest of the root.
func (p *rootPlan) folders() error {
	folders := []folder{{"/proc", 0o555}, {"/sys", 0o555}, {"/dev", 0o755}, {"/dev/pts", 0o755}, {"/dev/shm", 0o777 | fs.ModeSticky}, {"/etc", 0o755}}
	links := map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2", "/dev/ptmx": "pts/ptmx",
	}
	files := networkFiles()
	if p.Image == nil {
		folders = append(folders, []folder{
			{"/tmp", 0o777 | fs.ModeSticky}, {"/var", 0o755}, {"/var/tmp", 0o777 | fs.ModeSticky}, {"/root", 0o700}, {"/home", 0o755}, {"/run", 0o755},
			{"/logs", 0o755}, {"/logs/agent", 0o755}, {"/logs/verifier", 0o755}, {"/logs/artifacts", 0o755}, {"/tests", 0o755},
		}...)
		maps.Copy(links, p.Links)
		links["/etc/mtab"] = "/proc/self/mounts"
		files = etcFiles()
	}
	for _, d := range folders {
		if err := d.make(); err != nil {
			return fmt.Errorf("make %s: %w", d.path, err)
		}
	}
	for link, target := range links {
		if err := errors.Join(os.RemoveAll(link), os.Symlink(target, link)); err != nil {
			return fmt.Errorf("make %s: %w", link, err)
		}
	}
	for file, text := range files {
		if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
	}
	if p.Image == nil {
		if err := os.MkdirAll(p.Workdir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", p.Workdir, err)
		}
	}
	return nil
}

// make makes the folder in place of anything but a folder.
func (d folder) make() error {
	info, err := os.Lstat(d.path)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		err = os.Remove(d.path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Mkdir(d.path, 0o755), os.Chmod(d.path, d.mode))
}

func (b *bind) attach() error {
	at := b.Guest
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", at, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil {
		return fmt.Errorf("look at %s: %w", b.Host, err)
	}
	if err := makeMountPoint(at, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return fmt.Errorf("make %s: %w", at, err)
	}
	if err := unix.MoveMount(b.FD, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("show %s as %s: %w", b.Host, at, err)
	}
	_ = unix.Close(b.FD)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	switch {
	case b.Device:
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	case b.Writable:
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set the rights of %s: %w", at, err)
	}
	return nil
}

// makeMountPoint makes an empty file or a folder, unless there is one. It replaces
// anything else, such as a pipe or a link of an image.
func makeMountPoint(at string, dir bool) error {
	info, err := os.Lstat(at)
	if err == nil && (dir && info.IsDir() || !dir && info.Mode().IsRegular()) {
		return nil
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	if dir {
		return os.Mkdir(at, 0o755)
	}
	return os.WriteFile(at, nil, 0o644)
}

// openProc makes a detached mount of the processes of this namespace. The kernel allows
// it only while the host's /proc is in sight.
func openProc() (int, error) {
	about := func(err error) error {
		return fmt.Errorf("mount /proc (a container that masks parts of its own /proc forbids it): %w", err)
	}
	system, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, about(err)
	}
	defer unix.Close(system)
	if err := unix.FsconfigCreate(system); err != nil {
		return -1, about(err)
	}
	fd, err := unix.Fsmount(system, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, about(err)
	}
	return fd, nil
}

func mountKernelFiles(proc int) error {
	if err := unix.MoveMount(proc, "", unix.AT_FDCWD, "/proc", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	_ = unix.Close(proc)
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	// Programs in the sandbox need no user namespaces. Forbidding them puts much
	// of the kernel out of reach.
	err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0\n"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forbid nested user namespaces: %w", err)
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return fmt.Errorf("name the sandbox: %w", err)
	}
	return nil
}

// pivot makes a mount the root. The host's root is then above it, and is detached before
// any path is looked up, see pivot_root(2).
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return nil
}
