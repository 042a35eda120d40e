package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

const runPath = "/.turngate/run"

const (
	configName = "config.json"
	socketName = "box.sock"
)

// runFolders is the folder on this host that has a runFolder for each container.
type runFolders string

// open makes the folder of a container, in place of one that is left.
func (d runFolders) open(name string, cfg *box.Config) (*runFolder, error) {
	cfg.Socket = runPath + "/" + socketName
	return openRunFolder(filepath.Join(string(d), name), cfg)
}

// remove removes the folder of a container of an earlier process.
func (d runFolders) remove(name string) {
	_ = os.RemoveAll(filepath.Join(string(d), filepath.Base(name)))
}

// runFolder is a meeting on a host: the folder through which a container's box connects to its worker. It
// contains a configuration with the secret, and a socket. Both are removed as
// soon as the box is connected, before any other process runs in the container.
type runFolder struct {
	dir      string
	listener net.Listener
}

func openRunFolder(dir string, cfg *box.Config) (_ *runFolder, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clear the box's folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the box's folder: %w", err)
	}
	d := &runFolder{dir: dir}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure the box: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, configName), data, 0o600); err != nil {
		return nil, fmt.Errorf("configure the box: %w", err)
	}
	// The path of a socket is limited to about a hundred characters and a state
	// directory may be longer, so use the directory's descriptor.
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for the box: %w", err)
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())), socketName))
	if err != nil {
		return nil, fmt.Errorf("listen for the box: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the descriptor in that path is reused by then
	d.listener = l
	return d, nil
}

func (d *runFolder) join(c *container.Config, h *container.HostConfig) {
	c.Entrypoint = []string{sandboxes.HelperPath, "box", runPath + "/" + configName}
	h.Mounts = append(h.Mounts, readOnly(d.dir, runPath))
}

// listen does nothing: the folder has had a listener since it was made.
func (*runFolder) listen(context.Context, *instance) error { return nil }

// accept waits for the box and then removes the configuration and the socket. It
// closes connections that do not know the secret.
func (d *runFolder) accept(ctx context.Context, cfg *box.Config) (*box.Client, error) {
	defer context.AfterFunc(ctx, func() { _ = d.listener.Close() })()
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("wait for the box: %w", err)
		}
		client, err := box.NewClient(ctx, conn, cfg.Secret, cfg.Workdir)
		if err != nil {
			continue
		}
		d.shut()
		return client, nil
	}
}

func (d *runFolder) shut() {
	_ = d.listener.Close()
	for _, name := range []string{configName, socketName} {
		_ = os.Remove(filepath.Join(d.dir, name))
	}
}

// close removes the folder. The engine may keep it busy for a moment.
func (d *runFolder) close() {
	if d.listener != nil {
		_ = d.listener.Close()
	}
	for range 50 {
		if err := os.RemoveAll(d.dir); err == nil || !errors.Is(err, os.ErrPermission) && !isBusy(err) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func isBusy(err error) bool { return errors.Is(err, syscall.EBUSY) }
