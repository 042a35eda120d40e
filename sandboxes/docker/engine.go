package docker

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
)

// createTime bounds the creation of one container.
const createTime = 2 * time.Minute

// createContainer creates a container. The engine finishes a creation even if its
// request is cancelled, so this call waits for it: on every error with an ID in
// the response, and only then, a container exists.
func (b *Backend) createContainer(ctx context.Context, cfg *container.Config, host *container.HostConfig, net *network.NetworkingConfig, name string) (container.CreateResponse, error) {
	if ctx.Err() != nil {
		return container.CreateResponse{}, context.Cause(ctx)
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTime)
	defer cancel()
	made, err := b.api.ContainerCreate(whole, cfg, host, net, nil, name)
	if err != nil && !errdefs.IsConflict(err) {
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if failed := b.remove(gone, name); failed != nil {
			err = errors.Join(err, failed)
		}
		return container.CreateResponse{}, err
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return made, err
}

// waited is the end of a container.
type waited struct {
	status int64
	err    error
}

// wait waits for a condition of a container. stop ends the wait.
func (b *Backend) wait(ctx context.Context, id string, until container.WaitCondition) (_ <-chan waited, stop func()) {
	ctx, stop = context.WithCancel(ctx)
	out := make(chan waited, 1)
	ended, failed := b.api.ContainerWait(ctx, id, until)
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
