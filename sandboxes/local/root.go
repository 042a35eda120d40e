package local

import (
	"errors"
	"fmt"
	"io/fs"
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
}

// bind shows one file or folder of the host, read-only.
type bind struct {
	Host   string `json:"host"`
	Guest  string `json:"guest"`
	Device bool   `json:"device,omitempty"` // a device node, which stays usable
	FD     int    `json:"fd,omitempty"`     // descriptor of a detached mount that the worker made
}

// hostBinds lists the host paths that every sandbox shows: programs, libraries,
// the few files of /etc that these need, and devices.
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
	for _, dev := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		binds = append(binds, bind{Host: "/dev/" + dev, Guest: "/dev/" + dev, Device: true})
	}
	return binds, links
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
// process of new user, mount, process, network and ipc namespaces.
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
	options := "mode=0755"
	if p.DiskBytes > 0 {
		options = fmt.Sprintf("mode=0755,size=%d", p.DiskBytes)
	}
	if err := unix.Mount("tmpfs", newRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount the sandbox's root: %w", err)
	}
	if err := p.folders(); err != nil {
		return err
	}
	for _, b := range p.Binds {
		if err := b.attach(); err != nil {
			return err
		}
	}
	if err := mountKernelFiles(); err != nil {
		return err
	}
	return pivot()
}

func (p *rootPlan) folders() error {
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{
		{"/tmp", 0o777 | fs.ModeSticky}, {"/var/tmp", 0o777 | fs.ModeSticky}, {"/root", 0o700}, {"/home", 0o755}, {"/run", 0o755},
		{"/proc", 0o555}, {"/sys", 0o555}, {"/dev/pts", 0o755}, {"/dev/shm", 0o777 | fs.ModeSticky}, {"/etc", 0o755},
		{"/logs/agent", 0o755}, {"/logs/verifier", 0o755}, {"/logs/artifacts", 0o755}, {"/tests", 0o755}, {p.Workdir, 0o755}, {"/.old", 0o700},
	} {
		at := filepath.Join(newRoot, d.path)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", d.path, err)
		}
		if err := os.Chmod(at, d.mode); err != nil {
			return fmt.Errorf("make %s: %w", d.path, err)
		}
	}
	for link, target := range p.Links {
		if err := os.Symlink(target, filepath.Join(newRoot, link)); err != nil {
			return fmt.Errorf("make %s: %w", link, err)
		}
	}
	for link, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
		"/dev/ptmx": "pts/ptmx", "/etc/mtab": "/proc/self/mounts",
	} {
		if err := os.Symlink(target, filepath.Join(newRoot, link)); err != nil {
			return fmt.Errorf("make %s: %w", link, err)
		}
	}
	for file, text := range etcFiles() {
		if err := os.WriteFile(filepath.Join(newRoot, file), []byte(text), 0o644); err != nil {
			return fmt.Errorf("make %s: %w", file, err)
		}
	}
	return nil
}

// etcFiles are generated for the sandbox; they contain nothing of the host's
// files.
func etcFiles() map[string]string {
	return map[string]string{
		"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":         "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
		"/etc/hosts":         "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"/etc/hostname":      "sandbox\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
		"/etc/resolv.conf":   "",
	}
}

func (b *bind) attach() error {
	at := filepath.Join(newRoot, b.Guest)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", b.Guest, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil {
		return fmt.Errorf("look at %s: %w", b.Host, err)
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.MkdirAll(at, 0o755)
	} else {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", b.Guest, err)
	}
	if err := unix.MoveMount(b.FD, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("show %s as %s: %w", b.Host, b.Guest, err)
	}
	_ = unix.Close(b.FD)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if b.Device {
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("make %s read-only: %w", b.Guest, err)
	}
	return nil
}

func mountKernelFiles() error {
	if err := unix.Mount("proc", newRoot+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc (a container that masks parts of its own /proc forbids it): %w", err)
	}
	if err := unix.Mount("devpts", newRoot+"/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	// Programs in the sandbox need no user namespaces. Forbidding them puts much
	// of the kernel out of reach.
	err := os.WriteFile(newRoot+"/proc/sys/user/max_user_namespaces", []byte("0\n"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forbid nested user namespaces: %w", err)
	}
	return nil
}

func pivot() error {
	if err := unix.PivotRoot(newRoot, newRoot+"/.old"); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := os.Remove("/.old"); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return fmt.Errorf("name the sandbox: %w", err)
	}
	return nil
}
