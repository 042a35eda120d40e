package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Store has the images of an engine: it pulls and builds them, and removes the images of old
// builds. It is safe for concurrent use.
type Store struct {
	api     *client.Client
	flights shared // merges concurrent builds and pulls of one image
	builder builder
	built   *built
	cache   *buildCache
}

func newStore(api *client.Client, c Config, s *snapshots) *Store {
	return &Store{
		api:     api,
		builder: builder{api: api, repo: c.Repo, limits: c.Build},
		built:   &built{api: api, repo: c.Repo, keep: c.Keep, snapshots: s},
		cache:   &buildCache{api: api, bound: c.Keep.Cache, built: make(chan struct{}, 1)},
	}
}

// Images implements sandboxes.ImageStore. It returns the tags of the images.
func (s *Store) Images(ctx context.Context) ([]string, error) {
	all, err := s.api.ImageList(ctx, image.ListOptions{})
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

// HasImage implements sandboxes.ImageStore.
func (s *Store) HasImage(ctx context.Context, ref string) error {
	_, err := s.api.ImageInspect(ctx, ref)
	return wrapImage(ref, err)
}

// EnsureImage makes sure that the engine has an image and returns its name
// there. With how it builds the image; with a nil how it pulls ref. It does
// neither if the engine has the image already. log receives the engine's
// output; nil drops it.
func (s *Store) EnsureImage(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (string, error) {
	if how == nil {
		_, err := s.ensurePulled(ctx, ref, log)
		return ref, err
	}
	ref, shared, err := how.Refs(s.builder.repo, s.builder.limits.Network)
	if err == nil {
		_, err = s.ensureBuilt(ctx, ref, shared, how, log)
	}
	return ref, err
}

// ensure is EnsureImage, but returns the engine's description of the image. It
// prefers an image that the worker's operator has built to an image of the build's
// trainer.
func (s *Store) ensure(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (image.InspectResponse, error) {
	if how == nil {
		return s.ensurePulled(ctx, ref, log)
	}
	ref, shared, err := how.Refs(s.builder.repo, s.builder.limits.Network)
	if err != nil {
		return image.InspectResponse{}, err
	}
	return s.ensureBuilt(ctx, ref, shared, how, log)
}

func (s *Store) ensurePulled(ctx context.Context, ref string, log func(line string)) (image.InspectResponse, error) {
	return s.get(ctx, ref, log, func(ctx context.Context, say func(string)) error { return pull(ctx, s.api, ref, say) })
}

func (s *Store) ensureBuilt(ctx context.Context, ref, shared string, how *sandboxes.Build, log func(line string)) (image.InspectResponse, error) {
	if shared != ref {
		if _, err := s.api.ImageInspect(ctx, shared); err == nil {
			ref = shared
		}
	}
	img, err := s.get(ctx, ref, log, func(ctx context.Context, say func(string)) error {
		if err := s.builder.build(ctx, ref, shared, how, say); err != nil {
			return err
		}
		defer s.cache.hasBuilt()
		if err := s.built.keepWithin(ctx); err != nil {
			say("older images were not removed: " + err.Error())
		}
		return nil
	})
	if err == nil {
		s.built.markUsed(ctx, ref)
	}
	return img, err
}

// get returns an image, and makes it if the engine lacks it. Concurrent callers for one
// image share the work, which is stopped when all of them have gone.
func (s *Store) get(ctx context.Context, ref string, log func(line string), make func(context.Context, func(string)) error) (image.InspectResponse, error) {
	img, err := s.api.ImageInspect(ctx, inEngine(ref))
	if errdefs.IsNotFound(err) {
		err = s.flights.do(ctx, ref, log, make)
		for tries := 0; errors.Is(err, errContextClosed) && ctx.Err() == nil && tries < 3; tries++ {
			err = s.flights.do(ctx, ref, log, make)
		}
		if err != nil {
			return img, err
		}
		img, err = s.api.ImageInspect(ctx, inEngine(ref))
	}
	if err != nil {
		return img, wrapImage(ref, err)
	}
	if img.Config != nil && img.Config.Labels[labelSnapshot] != "" {
		return img, &sandboxes.ImageError{Image: ref, Code: schema.CodeNoImage, Reason: "it is a snapshot of a group, and no image"}
	}
	return img, checkPlatform(ctx, s.api, ref, img)
}

// BuildRef returns the name in the engine of the image of a build of the
// worker's operator.
func (s *Store) BuildRef(how *sandboxes.Build) (string, error) {
	_, shared, err := how.Refs(s.builder.repo, s.builder.limits.Network)
	return shared, err
}

// BuiltImages lists the images that builds left, the most recently used first.
func (s *Store) BuiltImages(ctx context.Context) ([]sandboxes.BuiltImage, error) {
	return s.built.list(ctx)
}

// RemoveBuilt removes an image that a build left. It returns false if a
// container uses the image.
func (s *Store) RemoveBuilt(ctx context.Context, i sandboxes.BuiltImage) (bool, error) {
	return s.built.remove(ctx, i.Ref)
}

// Pulled describes an image with a name that no build gave. It returns false if
// the engine lacks it. Its Used is the time at which the engine got or tagged it.
func (s *Store) Pulled(ctx context.Context, ref string) (sandboxes.BuiltImage, bool, error) {
	img, err := s.api.ImageInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return sandboxes.BuiltImage{}, false, nil
	}
	if err != nil {
		return sandboxes.BuiltImage{}, false, wrapImage(ref, err)
	}
	return sandboxes.BuiltImage{Ref: ref, Shared: ref, ID: img.ID, Size: img.Size, Used: img.Metadata.LastTagTime}, true, nil
}

// PruneImages removes images beyond the bounds and returns them. It removes
// neither an image that a container uses nor an image that no build of turngate
// left.
func (s *Store) PruneImages(ctx context.Context, k sandboxes.Keep) ([]sandboxes.BuiltImage, error) {
	return s.built.prune(ctx, k, 0)
}

// PruneCache removes the parts of the BuildKit cache with the oldest last use
// until the cache is within the bound of Config.Keep. It spares the parts that
// were used just now or that an image shares, so more than the bound may be left.
// It does nothing on an engine without BuildKit. It fails after 5 minutes.
func (s *Store) PruneCache(ctx context.Context) error { return s.cache.prune(ctx) }

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
func checkPlatform(ctx context.Context, api *client.Client, ref string, img image.InspectResponse) error {
	v, err := api.ServerVersion(ctx)
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

// Save writes an image as an archive, as `docker save` does. The engine must have it.
func (s *Store) Save(ctx context.Context, ref string, to io.Writer) error {
	body, err := s.api.ImageSave(ctx, []string{ref})
	if err != nil {
		return wrapImage(ref, err)
	}
	defer body.Close()
	if _, err := io.Copy(to, body); err != nil {
		return fmt.Errorf("save image %s: %w", ref, err)
	}
	return nil
}
