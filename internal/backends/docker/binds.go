package docker

import (
	"context"
	"fmt"
	"os"

	"github.com/docker/docker/api/types/mount"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// binds is the delivery to an engine on this host: containers mount its files, and boxes
// connect to its sockets.
type binds struct {
	helper  string
	folders runFolders
}

func (*binds) lacks() []string { return nil }

func (*binds) check(d sandboxes.Docker) error {
	for _, m := range d.Mounts {
		if _, err := os.Stat(m.Host); err != nil {
			return fmt.Errorf("--docker-mount: %w", err)
		}
	}
	return nil
}

func (d *binds) mounts(list []sandboxes.Mount) ([]mount.Mount, error) {
	out := []mount.Mount{readOnly(d.helper, sandboxes.HelperPath)}
	for _, m := range list {
		out = append(out, readOnly(m.Host, m.Guest))
	}
	return out, nil
}

func readOnly(from, to string) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: from, Target: to, ReadOnly: true}
}

func (*binds) bring(context.Context, *instance, string, *sandboxes.Spec) error { return nil }

func (d *binds) open(name string, cfg *box.Config) (meeting, error) {
	f, err := d.folders.open(name, cfg)
	if err != nil {
		return nil, err // without f: its nil pointer would make a meeting that is not nil
	}
	return f, nil
}

func (*binds) sweep(context.Context) error { return nil }
