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
	"time"

	"github.com/turngate/turngate/sandboxes/box"
)

const (
	configName = "config.json"
	socketName = "box.sock"
)

// door is the folder through which a container's box finds its worker: a
// configuration with the secret, and a socket. Both are gone as soon as the
// box has come in, which is before anything else runs in the container.
type door struct {
	dir      string
	listener net.Listener
}

func openDoor(dir string, cfg *box.Config) (_ *door, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clear the box's folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the box's folder: %w", err)
	}
	d := &door{dir: dir}
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
	// A socket's path has room for about a hundred characters, a state
	// directory may have more: go through its descriptor.
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("listen for the box: %w", err)
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())), socketName))
	if err != nil {
		return nil, fmt.Errorf("listen for the box: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then that path means something else
	d.listener = l
	return d, nil
}

// meet waits for the box, then shuts the door. Strangers are turned away.
func (d *door) meet(ctx context.Context, cfg *box.Config) (*box.Client, error) {
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

func (d *door) shut() {
	_ = d.listener.Close()
	for _, name := range []string{configName, socketName} {
		_ = os.Remove(filepath.Join(d.dir, name))
	}
}

// close removes the folder; the engine may need a moment to let go of it.
func (d *door) close() {
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
