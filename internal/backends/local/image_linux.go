package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/backends/layout"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// image is an image in use by a sandbox.
type image struct {
	*layout.Image
	root *layout.Root
}

// release ends the use of the image.
func (i *image) release() {
	if i != nil {
		i.root.Release()
	}
}

// open finds and unpacks the image of a Spec. It returns nil if s asks for none.
func (b *Backend) open(ctx context.Context, s *sandboxes.Spec) (*image, error) {
	if s.Image == "" && s.Build == nil {
		return nil, nil
	}
	if b.Local.Images == "" {
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.image", Value: cmp.Or(s.Image, "environment/Dockerfile"),
			Reason: "this local sandbox has no images: give the worker a folder of images with --local-images, or use the docker sandbox"}
	}
	ref, shown, make := s.Image, s.Image, "turngate image export --to "+b.Local.Images+" "+s.Image
	if s.Build != nil {
		_, shared, err := s.Build.Refs(sandboxes.BuildRepo, b.BuildNetwork)
		if err != nil {
			return nil, err
		}
		ref, shown, make = shared, s.Build.File()+" ("+shared+")", "turngate image export --to "+b.Local.Images+" TASK"
	}
	found, err := layout.Dir(b.Local.Images).Find(ref)
	var other *layout.PlatformError
	switch {
	case errors.Is(err, layout.ErrNoImage):
		return nil, &sandboxes.ImageError{Image: shown, Code: schema.CodeNoImage, Reason: fmt.Sprintf("%v; where a Docker engine is, make it there with `%s`", err, make)}
	case errors.As(err, &other):
		return nil, &sandboxes.ImageError{Image: shown, Code: schema.CodeImageKind, Reason: other.Error()}
	case err != nil:
		return nil, imageError(shown, err)
	}
	if err := ownRoot(found, shown); err != nil {
		return nil, err
	}
	if user := cmp.Or(s.User, found.Config.User); !ownsAllUsers() && !isRoot(user) {
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.image", Value: shown, Reason: fmt.Sprintf(
			"its commands run as the user %q, and a worker that is not root has sandboxes with the user root only; run the worker as root, or use the docker sandbox", user)}
	}
	root, err := b.roots().Open(ctx, found)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, imageError(shown, err)
	}
	return &image{found, root}, nil
}

// roots returns the folder of unpacked images.
func (b *Backend) roots() layout.Roots {
	return layout.Roots{Dir: b.Local.Unpacked, Owners: ownsAllUsers(), Keep: b.KeepBytes}
}

// imageError returns an *sandboxes.ImageError, which blames the image, unless the error
// comes from the folders or the resources of this host.
func imageError(shown string, err error) error {
	if errors.Is(err, layout.ErrFolder) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	for _, own := range []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.ESTALE} {
		if errors.Is(err, own) {
			return err
		}
	}
	return &sandboxes.ImageError{Image: shown, Reason: err.Error()}
}

// ownRoot refuses a folder of files that a sandbox of this user cannot show, since it has
// no other user.
func ownRoot(i *layout.Image, shown string) error {
	if i.Root == "" || ownsAllUsers() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(i.Root, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: i.Root, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: shown, Reason: fmt.Sprintf(
			"%s belongs to the user %d: want files of the worker's user %d; change their owner, run the worker as root, or use the docker sandbox", i.Root, st.Uid, os.Geteuid())}
	}
	return nil
}

// Images implements sandboxes.ImageStore. It returns the references of the images in
// layouts.
func (b *Backend) Images(context.Context) ([]string, error) {
	if b.Local.Images == "" {
		return nil, nil
	}
	return layout.Dir(b.Local.Images).Refs()
}

// HasImage implements sandboxes.ImageStore.
func (b *Backend) HasImage(_ context.Context, ref string) error {
	_, err := layout.Dir(b.Local.Images).Find(ref)
	return err
}

func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	return name == "" || name == "root" || name == "0"
}

// imagePlan tells the box where an image's files are.
type imagePlan struct {
	// Root is the folder with the files. Empty: the worker sends a mount of it over the
	// connection.
	Root string `json:"root,omitempty"`
	Copy bool   `json:"copy,omitempty"` // copy the files in place of an overlay
	fd   int    // a detached mount of the files
}

// tmpfsHasAttributes reports whether files in memory can have the attributes that an
// overlay in a user namespace needs for its changes. Linux before 6.6 lacks them.
func tmpfsHasAttributes() bool {
	fd, err := unix.MemfdCreate("turngate", unix.MFD_CLOEXEC)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Fsetxattr(fd, "user.turngate", []byte("y"), 0) == nil
}

// planImage plans the root of an image. It notes how the disk limit counts if the files
// are copied.
func (b *Backend) planImage(s *sandboxes.Spec, i *image) *imagePlan {
	p := &imagePlan{Copy: b.copies || !tmpfsHasAttributes()}
	if !ownsAllUsers() {
		p.Root = i.root.Path
	}
	if p.Copy && s.Note != nil {
		s.Note(schema.LimitDisk, "sandbox.disk_bytes: the files of the image count, since they were copied into memory: an overlay needs Linux 6.6")
	}
	return p
}

// send gives the box a mount of the image's files. Their owners are the users of the sandbox.
// Only the host's root can make it.
func (sb *sandbox) send(root string) error {
	users, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", sb.cmd.Process.Pid))
	if err != nil {
		return fmt.Errorf("show the image in the sandbox: %w", err)
	}
	defer users.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return forbidden(fmt.Errorf("show %s in the sandbox: %w", root, err))
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &sandboxes.UnsupportedError{Field: "sandbox.image", Value: root, Reason: fmt.Sprintf(
			"the file system of this folder cannot show files with other owners (%v): want ext4, xfs, btrfs or tmpfs; XDG_CACHE_HOME names the folder of unpacked images", err)}
	}
	conn, ok := sb.conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("show the image in the sandbox: the connection is a %T", sb.conn)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return fmt.Errorf("show the image in the sandbox: %w", err)
	}
	return nil
}

// receive takes the mount that send sends over this connection.
func (p *rootPlan) receive(conn int) error {
	if p.Image == nil || p.Image.Root != "" {
		return nil
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(conn, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("receive the image: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("receive the image: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("receive the image: %d descriptors: %w", len(fds), err)
	}
	p.Image.fd = fds[0]
	return nil
}

// mount makes a root of the image's files and the root's tmpfs, which has all changes, and
// returns its path.
func (p *imagePlan) mount() (string, error) {
	at := func(name string) string { return filepath.Join(newRoot, name) }
	lower, upper, work, root := at("image"), at("changes"), at("work"), at("root")
	for _, dir := range []string{lower, upper, work, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", fmt.Errorf("mount the image: %w", err)
		}
	}
	if err := unix.MoveMount(p.fd, "", unix.AT_FDCWD, lower, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return "", fmt.Errorf("mount the image: %w", err)
	}
	_ = unix.Close(p.fd)
	if p.Copy {
		if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
			return "", fmt.Errorf("mount a copy of the image: %w", err)
		}
		if err := copyTree(lower, root); err != nil {
			return "", fmt.Errorf("copy the image: %w", err)
		}
		return root, nil
	}
	// The root of an overlay has the attributes of the folder of changes.
	if err := copyAttributes(lower, upper); err != nil {
		return "", fmt.Errorf("mount the image: %w", err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", lower, upper, work)
	if err := unix.Mount("overlay", root, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return "", fmt.Errorf("mount an overlay of the image: %w", err)
	}
	return root, nil
}
