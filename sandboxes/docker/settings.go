package docker

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// argv returns the command of the container's own service. As in Docker, an
// entrypoint in the Spec drops the image's command.
func argv(c schema.Container, img image.InspectResponse) []string {
	entrypoint, command := c.Entrypoint, c.Command
	if len(entrypoint) == 0 && img.Config != nil {
		entrypoint = img.Config.Entrypoint
		if len(command) == 0 {
			command = img.Config.Cmd
		}
	}
	return slices.Concat(entrypoint, command)
}

// health returns the health check of an image; nil if it has none.
func health(img image.InspectResponse) *schema.Probe {
	if img.Config == nil || img.Config.Healthcheck == nil || len(img.Config.Healthcheck.Test) < 2 {
		return nil
	}
	h := img.Config.Healthcheck
	p := &schema.Probe{
		IntervalMS: h.Interval.Milliseconds(), TimeoutMS: h.Timeout.Milliseconds(), StartMS: h.StartPeriod.Milliseconds(), StartIntervalMS: h.StartInterval.Milliseconds(), Retries: h.Retries,
	}
	switch h.Test[0] {
	case "CMD":
		p.Test = h.Test[1:]
	case "CMD-SHELL":
		p.Test = []string{"/bin/sh", "-c", h.Test[1]}
		if len(img.Config.Shell) > 0 {
			p.Test = append(slices.Clone(img.Config.Shell), h.Test[1])
		}
	default: // NONE
		return nil
	}
	return p.WithDefaults()
}

// settings adds the Spec's container settings other than limits, and returns
// the container's network configuration.
func (sb *sandbox) settings(s sandboxes.Spec, cfg *container.Config, host *container.HostConfig) *network.NetworkingConfig {
	c := s.Container
	cfg.Hostname = cmp.Or(c.Hostname, cfg.Hostname)
	if sb.part && c.Hostname == "" {
		cfg.Hostname = sb.aliases[0]
	}
	host.ShmSize = c.ShmBytes
	for _, t := range c.Tmpfs {
		if host.Tmpfs == nil {
			host.Tmpfs = map[string]string{}
		}
		options := []string{fmt.Sprintf("mode=%o", cmp.Or(t.Mode, 0o1777))}
		if t.SizeBytes > 0 {
			options = append(options, fmt.Sprintf("size=%d", t.SizeBytes))
		}
		host.Tmpfs[t.Path] = strings.Join(options, ",")
	}
	for _, h := range c.Hosts {
		host.ExtraHosts = append(host.ExtraHosts, h.Name+":"+h.Address)
	}
	for _, u := range c.Ulimits {
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	if sb.group == nil {
		if c.Offline {
			host.NetworkMode = "none"
		}
		return nil
	}
	for _, m := range c.Mounts {
		seed := slices.ContainsFunc(s.Folders, func(f sandboxes.Folder) bool { return f.Name == m.Folder && f.Seed })
		host.Mounts = append(host.Mounts, sb.group.mount(m, seed))
	}
	if c.Offline {
		host.NetworkMode = "none"
		return nil
	}
	if sb.group.network == "" {
		return nil
	}
	host.NetworkMode = container.NetworkMode(sb.group.network)
	if s.Network != schema.NetworkOpen {
		// Names unknown to this network must not reach an outside name server,
		// which would be a way out.
		host.DNS, host.DNSOptions = []string{"127.0.0.1"}, []string{"timeout:1", "attempts:2"}
	}
	return &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{sb.group.network: {Aliases: sb.aliases}}}
}

// put copies files into the container before it starts.
func (sb *sandbox) put(ctx context.Context, files []sandboxes.File) error {
	if len(files) == 0 {
		return nil
	}
	packed, stop := piped(func(to io.Writer) error { return packFiles(to, files) })
	defer stop()
	if err := sb.b.api.CopyToContainer(ctx, sb.id, "/", packed, container.CopyToContainerOptions{}); err != nil {
		return fmt.Errorf("put files into container %s: %w", sb.name, err)
	}
	return nil
}

// packFiles writes files as a tar stream.
func packFiles(to io.Writer, files []sandboxes.File) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		name := strings.TrimPrefix(path.Clean(f.Path), "/")
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(f.Mode.Perm()), Size: f.Data.Size()}); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if _, err := io.Copy(w, io.NewSectionReader(f.Data, 0, f.Data.Size())); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	return w.Close()
}

// piped returns what write writes, as a reader. stop ends write and waits for it.
func piped(write func(io.Writer) error) (r io.Reader, stop func()) {
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		to.CloseWithError(write(to)) // a nil error ends the stream
	}()
	return from, func() {
		_ = from.Close() // never fails
		<-done
	}
}
