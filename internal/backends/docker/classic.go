package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/docker/docker/api/types/build"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/tonistiigi/fsutil"

	"github.com/turngate/turngate/schema"
)

// classic is the builder that every engine has, which enforces limits.
type classic struct{ api *client.Client }

// build makes an image. It removes all parts of a failed build.
func (c classic) build(ctx context.Context, w *building, say func(string)) error {
	if err := checkClassicSources(w.text); err != nil {
		return err
	}
	if err := checkBases(w.text, w.how.Args); err != nil {
		return err
	}
	files, err := w.context.ignoring(w.dockerfile)
	if err != nil {
		return err
	}
	packed, stop := piped(func(to io.Writer) error { return fsutil.WriteTar(ctx, files, to) })
	defer stop()
	login, err := allAuth()
	if err != nil {
		return err
	}
	o := build.ImageBuildOptions{
		Version: build.BuilderV1, Tags: []string{w.ref}, Dockerfile: w.dockerfile, Target: w.how.Target, BuildArgs: map[string]*string{}, Labels: w.labels,
		Remove: true, ForceRemove: true, Memory: w.limits.MemoryBytes, MemorySwap: w.limits.MemoryBytes, AuthConfigs: login,
	}
	for name, v := range w.how.Args {
		o.BuildArgs[name] = &v
	}
	if w.limits.CPUs > 0 {
		o.CPUPeriod, o.CPUQuota = cpuPeriod, int64(w.limits.CPUs*cpuPeriod)
	}
	if w.limits.Network == schema.NetworkNone {
		o.NetworkMode = "none"
	}
	began := time.Now()
	res, err := c.api.ImageBuild(ctx, packed, o)
	if err != nil {
		if client.IsErrConnectionFailed(err) {
			return fmt.Errorf("%w: %w", errEngine, err)
		}
		return err
	}
	defer res.Body.Close()
	var made []string
	out := &lines{say: func(line string) {
		if line != "" {
			say(line)
		}
	}}
	err = readProgress(res.Body, func(m *progressMessage) {
		// A message about a step's image has this line alone.
		if id := partLine.FindStringSubmatch(m.Stream); id != nil && len(made) < maxParts && !slices.Contains(made, id[1]) {
			made = append(made, id[1])
		}
		out.add(m.Stream)
	})
	out.end()
	if err != nil {
		c.removeParts(context.WithoutCancel(ctx), made, began)
	}
	return err
}

// maxParts bounds the images that are removed after a failed build.
const maxParts = 256

// partLine matches the message with the image of a finished step. The engine
// reports an image in a message of its own kind only when a stage ends, too late
// for a build that fails.
var partLine = regexp.MustCompile(`^ ---> ([0-9a-f]{12})\n$`)

// removeParts removes the images of a failed build: images without a name that
// are not older than the build. The engine refuses to remove an image in use.
func (c classic) removeParts(ctx context.Context, ids []string, began time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, id := range slices.Backward(ids) {
		img, err := c.api.ImageInspect(ctx, id)
		if err != nil || len(img.RepoTags) > 0 || len(img.RepoDigests) > 0 {
			continue
		}
		created, err := time.Parse(time.RFC3339Nano, img.Created)
		if err != nil || created.Before(began.Add(-time.Second)) {
			continue
		}
		_, _ = c.api.ImageRemove(ctx, img.ID, image.RemoveOptions{}) // fails if another build uses it
	}
}

// errEngine means that the engine, not the task, failed.
var errEngine = errors.New("the Docker engine")
