package docker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

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

// addSettings adds the settings of a Spec's container, without limits, folders and
// networks.
func addSettings(c schema.Container, cfg *container.Config, host *container.HostConfig) {
	cfg.Hostname = cmp.Or(c.Hostname, cfg.Hostname)
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
	if c.Offline {
		host.NetworkMode = "none"
	}
}
