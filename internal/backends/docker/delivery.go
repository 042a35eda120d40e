package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// delivery brings turngate and folders of this host into containers, and their boxes to
// this process. binds is for an engine on this host, copies for any other one.
type delivery interface {
	// lacks has a sentence for each feature that is missing.
	lacks() []string
	// check returns an error if a worker's settings are not possible.
	check(d sandboxes.Docker) error
	// mounts returns the mounts of turngate and of folders.
	mounts(list []sandboxes.Mount) ([]mount.Mount, error)
	// bring makes sure that these mounts have their files in a container of an image. The
	// container has not started.
	bring(ctx context.Context, in *instance, image string, s *sandboxes.Spec) error
	// open opens the way of a container's box.
	open(name string, cfg *box.Config) (meeting, error)
	// sweep removes old copies.
	sweep(ctx context.Context) error
}

// meeting is the way of one box to this process.
type meeting interface {
	// join adds the way to the settings of the container.
	join(c *container.Config, h *container.HostConfig)
	// listen opens this end. The container exists and has not started.
	listen(ctx context.Context, in *instance) error
	// accept waits for the box.
	accept(ctx context.Context, cfg *box.Config) (*box.Client, error)
	// close removes the files of the way on this host.
	close()
}

// deliveries finds the delivery of an engine once.
type deliveries struct {
	engine  engine
	config  Config
	folders runFolders

	mu    sync.Mutex
	known delivery // nil: the engine has not told yet
}

func (d *deliveries) get(ctx context.Context) (delivery, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known != nil {
		return d.known, nil
	}
	ours, err := d.engine.sharesFiles(ctx, d.config.StateDir, d.config.Helper)
	if err != nil {
		return nil, err
	}
	if ours {
		d.known = &binds{helper: d.config.Helper, folders: d.folders}
		return d.known, nil
	}
	c, err := newCopies(ctx, d.engine, d.config.Helper)
	if err != nil {
		return nil, err
	}
	d.known = c
	return c, nil
}

// sharesFiles reports whether the engine's containers can have files and sockets of this
// host. It asks the engine for a container of an image that does not exist, with mounts of
// a new file and of the helper. The engine refuses a mount of a missing file first. An
// engine in a virtual machine may have the files, such as Docker Desktop, but its kernel
// is another one, so no socket of this host works there. Neither does one on a host of the
// same kind that shares a file system with this one; its name is another one.
func (e engine) sharesFiles(ctx context.Context, dir, helper string) (bool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("ask whether the Docker engine has this host's files: %w", err)
	}
	f, err := os.CreateTemp(dir, "engine-")
	if err != nil {
		return false, fmt.Errorf("ask whether the Docker engine has this host's files: %w", err)
	}
	f.Close()
	defer os.Remove(f.Name())
	made, err := e.api.ContainerCreate(ctx, &container.Config{Image: "turngate-no-image:" + strings.TrimPrefix(filepath.Base(f.Name()), "engine-")},
		&container.HostConfig{Mounts: []mount.Mount{readOnly(f.Name(), "/file"), readOnly(helper, "/helper")}}, nil, nil, "")
	switch {
	case errdefs.IsInvalidArgument(err):
		return false, nil
	case err == nil:
		return false, errors.Join(errors.New("the Docker engine makes a container of an image that does not exist"), e.removeContainer(context.WithoutCancel(ctx), made.ID))
	case !errdefs.IsNotFound(err):
		return false, fmt.Errorf("ask whether the Docker engine has this host's files: %w", err)
	}
	if runtime.GOOS != "linux" {
		return false, nil // the engine has a kernel of its own
	}
	info, err := e.api.Info(ctx)
	if err != nil {
		return false, fmt.Errorf("ask whether the Docker engine has this host's kernel: %w", err)
	}
	kernel, memory, err := thisKernel()
	if err != nil {
		return false, err
	}
	if info.KernelVersion != kernel || info.MemTotal != memory {
		return false, nil
	}
	if strings.HasPrefix(e.api.DaemonHost(), "unix://") {
		return true, nil // also from a container of this host, which has a name of its own
	}
	name, err := os.Hostname()
	if err != nil {
		return false, fmt.Errorf("read the name of this host: %w", err)
	}
	return info.Name == name, nil
}

// thisKernel returns the release of this host's kernel, and its memory in bytes in the
// words that the engine has for it.
func thisKernel() (release string, memory int64, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", 0, fmt.Errorf("read the version of this kernel: %w", err)
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return "", 0, fmt.Errorf("read the memory of this host: %w", err)
	}
	defer f.Close()
	var kB int64
	if _, err := fmt.Fscanf(f, "MemTotal: %d kB", &kB); err != nil {
		return "", 0, fmt.Errorf("read the memory of this host: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), kB << 10, nil
}
