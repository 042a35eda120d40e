package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// copies is the delivery to an engine without this host's files. turngate and folders
// travel once, into volumes that all workers of the engine share, and boxes speak over
// the engine's API.
type copies struct {
	engine  engine
	helper  string
	program func() (digest string, err error) // of the helper
	trees   far.Trees
}

func newCopies(ctx context.Context, e engine, helper string) (*copies, error) {
	v, err := e.api.ServerVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the version of the Docker engine: %w", err)
	}
	if v.Os != "linux" || v.Arch != runtime.GOARCH {
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "docker", Reason: fmt.Sprintf(
			"the engine that DOCKER_HOST names runs %s/%s, this turngate is for linux/%s; take an engine of that kind", v.Os, v.Arch, runtime.GOARCH)}
	}
	return &copies{engine: e, helper: helper, program: sync.OnceValues(func() (string, error) { return far.Digest(helper) })}, nil
}

func (*copies) lacks() []string {
	return []string{"this host's files: turngate and the packages of agents travel there once, and --docker-mount is refused"}
}

func (*copies) check(d sandboxes.Docker) error {
	if len(d.Mounts) == 0 {
		return nil
	}
	return &sandboxes.UnsupportedError{Field: "--docker-mount", Value: d.Mounts[0].Host, Reason: "the engine that DOCKER_HOST names does not have this host's files; leave the flag out, or use an engine on this host"}
}

const (
	// labelFiles marks the volumes of folders; its value is the digest.
	labelFiles = "turngate.files"
	// labelFill marks the containers that fill volumes; its value is random.
	labelFill = "turngate.fill"
	// filesPrefix is no prefix of other volumes: volumes of sandboxes begin with turngate-.
	filesPrefix = "turngate_files_"
	// wholeName is the name of the file that a volume gets last: without it, its other
	// files may be missing.
	wholeName = ".turngate-whole"
	// fillTime bounds the journey of one folder.
	fillTime = 10 * time.Minute
	// oldFiles is the age at which a volume that no container has is removed.
	oldFiles = 7 * 24 * time.Hour
)

// parcel is a folder that travels to an engine.
type parcel struct {
	named  string // in log lines
	digest string
	at     string // its place in containers
	pack   func(to io.Writer) error
}

func (p *parcel) volume() string { return filesPrefix + p.digest }

func (p *parcel) mount(at string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: p.volume(), Target: at, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelFiles: p.digest}},
	}
}

// parcels returns the folder of turngate and then the folders of list.
func (c *copies) parcels(list []sandboxes.Mount) ([]parcel, error) {
	digest, err := c.program()
	if err != nil {
		return nil, err
	}
	out := []parcel{{"turngate", digest, path.Dir(sandboxes.HelperPath), func(to io.Writer) error { return packProgram(to, c.helper, digest) }}}
	for _, m := range list {
		tree, err := c.trees.Of(m.Host)
		if err != nil {
			return nil, err
		}
		out = append(out, parcel{m.Host, tree.Digest, m.Guest, func(to io.Writer) error { return packTree(to, m.Host, tree.Digest) }})
	}
	return out, nil
}

// packTree writes a folder as a tar stream, and returns an error if it has another digest.
func packTree(to io.Writer, dir, digest string) error {
	sum := sha256.New()
	if err := far.Pack(dir, io.MultiWriter(to, sum)); err != nil {
		return err
	}
	return unchanged(dir, sum, digest)
}

func unchanged(path string, sum hash.Hash, digest string) error {
	if hex.EncodeToString(sum.Sum(nil)) != digest {
		return fmt.Errorf("%s has changed since this process began; start it again", path)
	}
	return nil
}

// packProgram writes the folder of turngate as a tar stream, and returns an error if the
// program has another digest. The stream has an empty folder for
// the mount of an agent's packages: the volume is read-only in containers.
func packProgram(to io.Writer, helper, digest string) error {
	f, err := os.Open(helper)
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	w := tar.NewWriter(to)
	for _, h := range []tar.Header{
		{Name: path.Base(sandboxes.AgentPath) + "/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: path.Base(sandboxes.HelperPath), Typeflag: tar.TypeReg, Mode: 0o755, Size: info.Size()},
	} {
		if err := w.WriteHeader(&h); err != nil {
			return fmt.Errorf("pack turngate: %w", err)
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), f); err != nil {
		return fmt.Errorf("pack turngate: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("pack turngate: %w", err)
	}
	return unchanged(helper, sum, digest)
}

// wholeMark returns an archive with the file that says that a volume has all its files.
func wholeMark() *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}) // a write into memory cannot fail
	_ = w.WriteHeader(&tar.Header{Name: wholeName, Typeflag: tar.TypeReg, Mode: 0o444})
	_ = w.Close()
	return &b
}

func (c *copies) mounts(list []sandboxes.Mount) ([]mount.Mount, error) {
	all, err := c.parcels(list)
	if err != nil {
		return nil, err
	}
	var out []mount.Mount
	for _, p := range all {
		out = append(out, p.mount(p.at, true))
	}
	return out, nil
}

// bring looks into the volumes of a container, which the engine made with it if they were
// missing. From then on no sweep removes them.
func (c *copies) bring(ctx context.Context, in *instance, image string, s *sandboxes.Spec) error {
	all, err := c.parcels(s.Mounts)
	if err != nil {
		return err
	}
	for _, p := range all {
		whole, err := c.whole(ctx, in.id, p.at)
		if err != nil {
			return fmt.Errorf("look at %s of container %s: %w", p.at, in.name, err)
		}
		if whole {
			continue
		}
		if err := c.fill(ctx, &p, image, s); err != nil {
			return fmt.Errorf("bring %s to the Docker engine: %w", p.named, err)
		}
	}
	return nil
}

// whole reports whether the volume at a path of a container has all its files.
func (c *copies) whole(ctx context.Context, id, at string) (bool, error) {
	_, err := c.engine.api.ContainerStatPath(ctx, id, path.Join(at, wholeName))
	// The engine shows all mounts for the look, and fails if the place of one is missing in
	// the volume of turngate.
	if errdefs.IsNotFound(err) || errdefs.IsInternal(err) {
		return false, nil
	}
	return err == nil, err
}

// fill puts a folder into its volume, through a container that never runs. The name of
// the container makes sure that one process at a time does so.
func (c *copies) fill(ctx context.Context, p *parcel, image string, s *sandboxes.Spec) (err error) {
	const at = fillPath + "files"
	mine := labels(*s)
	mine[labelFill] = rand.Text() // a failed creation removes no container of another one
	id, err := c.enter(ctx, p.volume(), func() (container.CreateResponse, error) {
		return c.engine.createContainer(ctx, &container.Config{Image: image, Labels: mine, Entrypoint: []string{"none"}},
			&container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{p.mount(at, false)}}, nil, p.volume())
	})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, c.engine.removeContainer(context.WithoutCancel(ctx), id))
	}()
	if whole, err := c.whole(ctx, id, at); err != nil || whole {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, fillTime, fmt.Errorf("it did not arrive within %s", fillTime))
	defer cancel()
	if s.Log != nil {
		s.Log(p.named + " travels to the Docker engine")
	}
	var unlike error // valid after stop; the engine may have taken all files before it
	packed, stop := piped(func(to io.Writer) error {
		unlike = p.pack(to)
		return unlike
	})
	err = c.engine.api.CopyToContainer(ctx, id, at, packed, container.CopyToContainerOptions{})
	stop()
	if err == nil {
		err = unlike
	}
	if err == nil {
		err = c.engine.api.CopyToContainer(ctx, id, at, wholeMark(), container.CopyToContainerOptions{})
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// enter makes the container that fills a volume, and returns its id. While another process
// has it, enter waits. One that has it for longer than fillTime is dead.
func (c *copies) enter(ctx context.Context, name string, create func() (container.CreateResponse, error)) (id string, err error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var holder string
	var since time.Time
	for {
		made, err := create()
		if !errdefs.IsConflict(err) {
			if err != nil && made.ID != "" {
				err = errors.Join(err, c.engine.removeContainer(context.WithoutCancel(ctx), made.ID))
			}
			return made.ID, err
		}
		there, err := c.engine.api.ContainerInspect(ctx, name)
		switch {
		case err == nil && (there.Config == nil || there.Config.Labels[labelFill] == ""):
			return "", fmt.Errorf("the container %s is none of turngate's: remove it", name)
		case err == nil && there.ID != holder:
			holder, since = there.ID, time.Now()
		case err == nil && time.Since(since) > fillTime:
			if err := c.engine.removeContainer(ctx, holder); err != nil {
				return "", err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (*copies) open(_ string, cfg *box.Config) (meeting, error) {
	cfg.Stdio = true
	return &attachment{}, nil
}

func (c *copies) sweep(ctx context.Context) error { return c.removeOlder(ctx, oldFiles) }

// removeOlder removes volumes of folders, of every worker. A container keeps its own, and
// the folder travels again to one that comes later.
func (c *copies) removeOlder(ctx context.Context, age time.Duration) error {
	all, err := c.engine.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelFiles))})
	if err != nil {
		return fmt.Errorf("list the copies of folders: %w", err)
	}
	var failed []error
	for _, v := range all.Volumes {
		made, err := time.Parse(time.RFC3339, v.CreatedAt)
		if !strings.HasPrefix(v.Name, filesPrefix) || err != nil || time.Since(made) < age {
			continue
		}
		if err := c.engine.api.VolumeRemove(ctx, v.Name, false); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			failed = append(failed, fmt.Errorf("remove the copy of a folder %s: %w", v.Name, err))
		}
	}
	return errors.Join(failed...)
}
