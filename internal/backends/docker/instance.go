package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// instance is one container.
type instance struct {
	engine engine
	name   string
	id     string // empty: it is not created
}

// settings are the engine's settings of a container.
type settings struct {
	config  *container.Config
	host    *container.HostConfig
	network *network.NetworkingConfig // nil: as host says
}

// create creates the container, with the disk limit of s if the engine can enforce it.
func (in *instance) create(ctx context.Context, l *limits, s *sandboxes.Spec, set func() settings) error {
	made := func(quota bool) (container.CreateResponse, error) {
		c := set()
		if quota {
			c.host.StorageOpt = map[string]string{"size": strconv.FormatInt(s.DiskBytes, 10)}
		}
		return in.engine.createContainer(ctx, c.config, c.host, c.network, in.name)
	}
	created, err := l.create(ctx, s, made)
	if errdefs.IsConflict(err) { // left by a process that died; its attempt is over
		if err := in.engine.removeOwn(ctx, in.name, labels(*s)); err != nil {
			return err
		}
		created, err = l.create(ctx, s, made)
	}
	in.id = created.ID // also of a container that is not wanted any more: remove removes it
	var no *sandboxes.UnsupportedError
	switch {
	case errors.As(err, &no):
		return no
	case errdefs.IsInvalidArgument(err):
		return &sandboxes.UnsupportedError{Field: "sandbox", Value: "a setting", Reason: "the Docker engine refuses it: " + err.Error()}
	case err != nil:
		return fmt.Errorf("create container %s: %w", in.name, err)
	}
	return nil
}

// put copies files into the container before it starts.
func (in *instance) put(ctx context.Context, files []sandboxes.File) error {
	if len(files) == 0 {
		return nil
	}
	packed, stop := piped(func(to io.Writer) error { return packFiles(to, files) })
	defer stop()
	if err := in.engine.api.CopyToContainer(ctx, in.id, "/", packed, container.CopyToContainerOptions{}); err != nil {
		return fmt.Errorf("put files into container %s: %w", in.name, err)
	}
	return nil
}

// start runs the container and connects to its box, which must come up within the time
// ready.
func (in *instance) start(ctx context.Context, m meeting, cfg *box.Config, ready time.Duration) (*box.Client, error) {
	ended, stop := in.engine.wait(context.WithoutCancel(ctx), in.id, container.WaitConditionNextExit)
	defer stop()
	if err := m.listen(ctx, in); err != nil {
		return nil, err
	}
	if err := in.engine.api.ContainerStart(ctx, in.id, container.StartOptions{}); err != nil {
		return nil, fmt.Errorf("start container %s: %w", in.name, err)
	}
	ctx, cancel := box.Within(ctx, ready, fmt.Errorf("the box of container %s did not come up within %s", in.name, ready))
	defer cancel()
	type met struct {
		client *box.Client
		err    error
	}
	done := make(chan met, 1)
	go func() {
		c, err := m.accept(ctx, cfg)
		done <- met{c, err}
	}()
	select {
	case r := <-done:
		return r.client, r.err
	case w := <-ended:
		if w.err != nil {
			return nil, fmt.Errorf("watch container %s: %w", in.name, w.err)
		}
		return nil, fmt.Errorf("the box of container %s ended with status %d before it spoke", in.name, w.status)
	}
}

// connect connects the container to the engine's default network, or disconnects it.
func (in *instance) connect(ctx context.Context, on bool) error {
	var err error
	if on {
		err = in.engine.api.NetworkConnect(ctx, theBridge, in.id, nil)
	} else {
		err = in.engine.api.NetworkDisconnect(ctx, theBridge, in.id, true)
	}
	if err != nil {
		return fmt.Errorf("change the network of container %s: %w", in.name, err)
	}
	return nil
}

func (in *instance) freeze(ctx context.Context) error {
	return in.settled(ctx, "freeze", in.engine.api.ContainerPause)
}

func (in *instance) thaw(ctx context.Context) error {
	return in.settled(ctx, "thaw", in.engine.api.ContainerUnpause)
}

// settled asks the engine again for up to 5 s while it refuses a change of a running
// container: for some milliseconds after a change it may have the state before.
func (in *instance) settled(ctx context.Context, name string, change func(context.Context, string) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := change(ctx, in.id)
		if err == nil {
			return nil
		}
		if !in.running(ctx) {
			return fmt.Errorf("%s container %s: %w", name, in.name, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s container %s: %w", name, in.name, err)
		}
	}
}

func (in *instance) running(ctx context.Context) bool {
	c, err := in.engine.api.ContainerInspect(ctx, in.id)
	return err == nil && c.State != nil && c.State.Running
}

// remove removes the container, if there is one.
func (in *instance) remove(ctx context.Context) error {
	if in.id == "" {
		return nil
	}
	return in.engine.removeContainer(ctx, in.id)
}
