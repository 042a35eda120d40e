package docker

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// checkPlaces refuses a mount that a link of the image leads to the box's own
// files or to the kernel's folders: such a mount could replace the first process
// of the container. The container exists and has not started.
func checkPlaces(ctx context.Context, in *instance, s sandboxes.Spec) error {
	var targets []string
	for _, m := range s.Container.Mounts {
		targets = append(targets, m.Path)
	}
	for _, m := range s.Mounts {
		if schema.CheckContainerPath("path", m.Guest) == nil { // turngate's own places are below
			targets = append(targets, m.Guest)
		}
	}
	for _, t := range s.Container.Tmpfs {
		targets = append(targets, t.Path)
	}
	if len(targets) == 0 {
		return nil
	}
	for _, own := range []string{sandboxes.HelperPath, runPath} {
		if real, err := realPath(ctx, in, own); err != nil || real != own {
			return refusePlace(own, real, err)
		}
	}
	for _, target := range targets {
		real, err := realPath(ctx, in, target)
		if err == nil {
			err = schema.CheckContainerPath("path", real)
		}
		if err != nil {
			return refusePlace(target, real, err)
		}
	}
	return nil
}

func refusePlace(target, real string, err error) error {
	if real == "" {
		return err
	}
	return &sandboxes.UnsupportedError{Field: "sandbox.container", Value: target, Reason: "a link in the image leads it to " + real + ", which is not free for mounts"}
}

// realPath resolves the links in a path of the container. Parts that do not exist
// stay as they are.
func realPath(ctx context.Context, in *instance, p string) (string, error) {
	at := "/"
	for _, part := range strings.Split(strings.Trim(p, "/"), "/") {
		at = path.Join(at, part)
		stat, err := in.engine.api.ContainerStatPath(ctx, in.id, at)
		if errdefs.IsNotFound(err) {
			continue
		}
		if errdefs.IsInternal(err) { // the engine shows all mounts for the look, and one fails
			return "", &sandboxes.UnsupportedError{Field: "sandbox.container", Value: at, Reason: "the engine cannot make the container's mounts: " + err.Error()}
		}
		if err != nil {
			return "", fmt.Errorf("look at %s of container %s: %w", at, in.name, err)
		}
		if stat.LinkTarget != "" {
			at = path.Join("/", stat.LinkTarget) // the engine has resolved it wholly
		}
	}
	return at, nil
}
