package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Images lists the tags of the engine's images. A rollout with one of these
// images needs no pull.
func (b *Backend) Images(ctx context.Context) ([]string, error) {
	all, err := b.api.ImageList(ctx, image.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var out []string
	for _, i := range all {
		for _, tag := range i.RepoTags {
			if !strings.HasPrefix(tag, "<none>") && !isSnapshot(tag) {
				out = append(out, tag)
			}
		}
	}
	return out, nil
}

// EnsureImage makes sure that the engine has an image and returns its name
// there. With how it builds the image; with a nil how it pulls ref. It does
// neither if the engine has the image already. log receives the engine's
// output; nil drops it.
func (b *Backend) EnsureImage(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (string, error) {
	if how == nil {
		_, err := b.ensurePulled(ctx, ref, log)
		return ref, err
	}
	ref, shared, err := b.buildRefs(how)
	if err == nil {
		_, err = b.ensureBuilt(ctx, ref, shared, how, log)
	}
	return ref, err
}

// ensureImage is EnsureImage, but returns the engine's description of the
// image. It prefers an image that the worker's operator has built to an image
// of the build's trainer. Concurrent callers for one image share the work. It is stopped when
// all of them have gone.
func (b *Backend) ensureImage(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (image.InspectResponse, error) {
	if how == nil {
		return b.ensurePulled(ctx, ref, log)
	}
	ref, shared, err := b.buildRefs(how)
	if err != nil {
		return image.InspectResponse{}, err
	}
	return b.ensureBuilt(ctx, ref, shared, how, log)
}

func (b *Backend) ensurePulled(ctx context.Context, ref string, log func(line string)) (image.InspectResponse, error) {
	return b.ensure(ctx, ref, log, func(ctx context.Context, say func(string)) error { return b.pull(ctx, ref, say) })
}

func (b *Backend) ensureBuilt(ctx context.Context, ref, shared string, how *sandboxes.Build, log func(line string)) (image.InspectResponse, error) {
	if shared != ref {
		if _, err := b.api.ImageInspect(ctx, shared); err == nil {
			ref = shared
		}
	}
	img, err := b.ensure(ctx, ref, log, func(ctx context.Context, say func(string)) error {
		if err := b.build(ctx, ref, shared, how, say); err != nil {
			return err
		}
		defer b.hasBuilt()
		if err := b.keepWithin(ctx); err != nil {
			say("older images were not removed: " + err.Error())
		}
		return nil
	})
	if err == nil {
		b.markUsed(ctx, ref)
	}
	return img, err
}

// ensure makes an image that the engine lacks.
func (b *Backend) ensure(ctx context.Context, ref string, log func(line string), make func(context.Context, func(string)) error) (image.InspectResponse, error) {
	img, err := b.api.ImageInspect(ctx, inEngine(ref))
	if errdefs.IsNotFound(err) {
		err = b.images.do(ctx, ref, log, make)
		for tries := 0; errors.Is(err, errContextClosed) && ctx.Err() == nil && tries < 3; tries++ {
			err = b.images.do(ctx, ref, log, make)
		}
		if err != nil {
			return img, err
		}
		img, err = b.api.ImageInspect(ctx, inEngine(ref))
	}
	if err != nil {
		return img, wrapImage(ref, err)
	}
	if img.Config != nil && img.Config.Labels[labelSnapshot] != "" {
		return img, &sandboxes.ImageError{Image: ref, Code: schema.CodeNoImage, Reason: "it is a snapshot of a group, and no image"}
	}
	return img, b.checkPlatform(ctx, ref, img)
}

// inEngine returns the form of an image's name that the engine takes for a name. It
// takes other forms for the first digits of an id, too, so a request could try all of
// them and find the files of another trainer.
func inEngine(ref string) string {
	if hex := strings.TrimPrefix(ref, "sha256:"); len(hex) == 64 && idLike(hex) {
		return "sha256:" + hex
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref // the engine refuses it
	}
	return reference.TagNameOnly(named).String()
}

// checkPlatform refuses an image that this engine cannot run. Otherwise its
// first command would fail.
func (b *Backend) checkPlatform(ctx context.Context, ref string, img image.InspectResponse) error {
	v, err := b.api.ServerVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the version of the Docker engine: %w", err)
	}
	runs := img.Architecture == "" || img.Architecture == v.Arch || v.Arch == "amd64" && img.Architecture == "386" || v.Arch == "arm64" && img.Architecture == "arm"
	if runs && (img.Os == "" || img.Os == v.Os) {
		return nil
	}
	return &sandboxes.ImageError{Image: ref, Code: schema.CodeImageKind, Reason: fmt.Sprintf(
		"it is for %s/%s, and this engine runs %s/%s: take an image for that, or a worker of the other kind", img.Os, img.Architecture, v.Os, v.Arch)}
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

func isBusy(err error) bool { return errors.Is(err, syscall.EBUSY) }

// HasImage returns an error if the engine does not have an image. It does not
// pull it.
func (b *Backend) HasImage(ctx context.Context, ref string) error {
	_, err := b.api.ImageInspect(ctx, ref)
	return wrapImage(ref, err)
}
