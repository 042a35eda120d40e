package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
)

// engine makes and removes containers, networks and volumes. Its methods are what
// takes several requests, or has an answer that is no error here.
type engine struct{ api *client.Client }

// createTime bounds the creation of one container.
const createTime = 2 * time.Minute

// createContainer creates a container. The engine finishes a creation even if its
// request is cancelled, so this call waits for it: on every error with an ID in
// the response, and only then, a container exists.
func (e engine) createContainer(ctx context.Context, cfg *container.Config, host *container.HostConfig, net *network.NetworkingConfig, name string) (container.CreateResponse, error) {
	if ctx.Err() != nil {
		return container.CreateResponse{}, context.Cause(ctx)
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTime)
	defer cancel()
	made, err := e.api.ContainerCreate(whole, cfg, host, net, nil, name)
	if err != nil && !errdefs.IsConflict(err) {
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if failed := e.removeOwn(gone, name, cfg.Labels); failed != nil {
			err = errors.Join(err, failed)
		}
		return container.CreateResponse{}, err
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return made, err
}

const (
	removeTries = 5
	removePause = 300 * time.Millisecond
	removeLook  = 3 * time.Second
)

// removeOwn removes the container of this name if it has these labels, and waits until it is
// gone. Another owner's container stays, without an error.
func (e engine) removeOwn(ctx context.Context, name string, labels map[string]string) error {
	for try := 1; ; try++ {
		c, err := e.api.ContainerInspect(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			return nil
		case err == nil && !hasLabels(c.Config, labels):
			return nil
		case err == nil:
			return e.removeContainer(ctx, c.ID)
		case try == removeTries:
			return fmt.Errorf("look at container %s: %w", name, err)
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return fmt.Errorf("look at container %s: %w", name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// hasLabels reports whether a container has all these labels.
func hasLabels(c *container.Config, labels map[string]string) bool {
	for k, v := range labels {
		if c == nil || c.Labels[k] != v {
			return false
		}
	}
	return true
}

// removeContainer removes a container and waits until it is gone. A missing container is
// no error.
func (e engine) removeContainer(ctx context.Context, id string) error {
	gone, stop := e.wait(ctx, id, container.WaitConditionRemoved)
	defer stop()
	for try := 1; ; try++ {
		err := e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
			break
		}
		// If a container ends while the engine kills it, the engine fails and does
		// not remove it either.
		if try == removeTries {
			return fmt.Errorf("remove container %s: %w", id, err)
		}
		select {
		case <-time.After(removePause):
		case <-ctx.Done():
			return fmt.Errorf("remove container %s: %w", id, errors.Join(err, context.Cause(ctx)))
		}
	}
	look := time.NewTicker(removeLook)
	defer look.Stop()
	for {
		select {
		case w := <-gone:
			if w.err != nil && !errdefs.IsNotFound(w.err) {
				return fmt.Errorf("wait for container %s to be removed: %w", id, w.err)
			}
			return nil
		case <-look.C: // the engine does not always report a removal to its waiters
			if _, err := e.api.ContainerInspect(ctx, id); errdefs.IsNotFound(err) {
				return nil
			}
		}
	}
}

// waited is the end of a container.
type waited struct {
	status int64
	err    error
}

// wait waits for a condition of a container. stop ends the wait.
func (e engine) wait(ctx context.Context, id string, until container.WaitCondition) (_ <-chan waited, stop func()) {
	ctx, stop = context.WithCancel(ctx)
	out := make(chan waited, 1)
	ended, failed := e.api.ContainerWait(ctx, id, until)
	go func() {
		select {
		case status := <-ended:
			out <- waited{status: status.StatusCode}
		case err := <-failed:
			out <- waited{err: err}
		}
	}()
	return out, stop
}

// removeNetwork removes a network, which may be gone already.
func (e engine) removeNetwork(ctx context.Context, id, name string) error {
	if err := e.api.NetworkRemove(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	return nil
}

// removeVolume removes the volume of a folder, which may be gone already.
func (e engine) removeVolume(ctx context.Context, id, folder string) error {
	if err := e.api.VolumeRemove(ctx, id, true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove folder %s: %w", folder, err)
	}
	return nil
}
