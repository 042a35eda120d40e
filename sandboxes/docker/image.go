package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/pkg/jsonmessage"

	"github.com/turngate/turngate/sandboxes"
)

// Images lists the tags of the images that the engine has: rollouts that want
// one of them start at once.
func (b *Backend) Images(ctx context.Context) ([]string, error) {
	all, err := b.api.ImageList(ctx, image.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []string
	for _, i := range all {
		for _, tag := range i.RepoTags {
			if !strings.HasPrefix(tag, "<none>") {
				out = append(out, tag)
			}
		}
	}
	return out, nil
}

// image makes sure that the sandbox's image is there: built from its context,
// or pulled if the engine does not have it. Rollouts that need the same one at
// the same time share the work.
func (b *Backend) image(ctx context.Context, s sandboxes.Spec) (image.InspectResponse, error) {
	ref, fetch := s.Image, b.pull
	if len(s.BuildTar) > 0 {
		sum := sha256.Sum256(s.BuildTar)
		ref = "turngate-build:" + hex.EncodeToString(sum[:16])
		fetch = func(ctx context.Context, ref string) error { return b.build(ctx, ref, s.BuildTar) }
	}
	img, err := b.api.ImageInspect(ctx, ref)
	if err == nil || !errdefs.IsNotFound(err) {
		return img, wrapImage(ref, err)
	}
	// The work outlives the rollout that began it if others wait for it too.
	done := b.images.DoChan(ref, func() (any, error) { return nil, fetch(context.WithoutCancel(ctx), ref) })
	select {
	case r := <-done:
		if r.Err != nil {
			return img, r.Err
		}
	case <-ctx.Done():
		return img, context.Cause(ctx)
	}
	img, err = b.api.ImageInspect(ctx, ref)
	return img, wrapImage(ref, err)
}

func wrapImage(ref string, err error) error {
	if err == nil {
		return nil
	}
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		return &sandboxes.ImageError{Image: ref, Reason: err.Error()}
	}
	return fmt.Errorf("look up image %s: %w", ref, err)
}

func (b *Backend) pull(ctx context.Context, ref string) error {
	body, err := b.api.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return &sandboxes.ImageError{Image: ref, Reason: "it is not on this host and cannot be pulled: " + err.Error()}
	}
	defer body.Close()
	if _, err := drain(body); err != nil {
		return &sandboxes.ImageError{Image: ref, Reason: "it is not on this host and cannot be pulled: " + err.Error()}
	}
	return nil
}

func (b *Backend) build(ctx context.Context, ref string, context []byte) error {
	res, err := b.api.ImageBuild(ctx, bytes.NewReader(context), build.ImageBuildOptions{
		Version: build.BuilderV1, Tags: []string{ref}, Remove: true, ForceRemove: true, Labels: map[string]string{"turngate.build": "task"},
	})
	if err != nil {
		return &sandboxes.ImageError{Image: "environment/Dockerfile", Reason: err.Error()}
	}
	defer res.Body.Close()
	if said, err := drain(res.Body); err != nil {
		return &sandboxes.ImageError{Image: "environment/Dockerfile", Reason: err.Error() + "\n" + said}
	}
	return nil
}

// drain reads the engine's progress; failures come inside of it. It returns
// the last lines that were said.
func drain(r io.Reader) (string, error) {
	var lines []string
	for dec := json.NewDecoder(r); ; {
		var m jsonmessage.JSONMessage
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			return strings.Join(lines, ""), nil
		}
		if err != nil {
			return strings.Join(lines, ""), fmt.Errorf("read the engine's answer: %w", err)
		}
		if m.Error != nil {
			return strings.Join(lines, ""), m.Error
		}
		if m.Stream != "" {
			if lines = append(lines, m.Stream); len(lines) > 30 {
				lines = lines[1:]
			}
		}
	}
}

func isBusy(err error) bool { return errors.Is(err, syscall.EBUSY) }

// HasImage says whether the engine has an image, without pulling it.
func (b *Backend) HasImage(ctx context.Context, ref string) error {
	_, err := b.api.ImageInspect(ctx, ref)
	return wrapImage(ref, err)
}
