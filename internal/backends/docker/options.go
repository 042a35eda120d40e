package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
)

// checkRuntime returns an error if the engine lacks a runtime.
func checkRuntime(ctx context.Context, api *client.Client, name string) error {
	if name == "" {
		return nil
	}
	info, err := api.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the runtimes of the Docker engine: %w", err)
	}
	if _, ok := info.Runtimes[name]; !ok {
		return fmt.Errorf("--docker-runtime: the engine has no runtime %q: want one of %s", name, strings.Join(slices.Sorted(maps.Keys(info.Runtimes)), ", "))
	}
	return nil
}

// refuseGPUs refuses more GPUs than the worker gives to a sandbox.
func refuseGPUs(d sandboxes.Docker, n int) error {
	most := d.MostGPUs()
	switch {
	case n <= most:
		return nil
	case most == 0:
		return sandboxes.GPUsUnsupported(n)
	default:
		return &sandboxes.UnsupportedError{Field: "sandbox.gpus", Value: fmt.Sprint(n), Reason: fmt.Sprintf("this worker gives a sandbox at most %d", most)}
	}
}

// addOptions adds the worker's runtime, and the GPUs of a sandbox with n of them.
func addOptions(d sandboxes.Docker, n int, host *container.HostConfig) {
	host.Runtime = d.Runtime
	if n == 0 {
		return
	}
	gpus := container.DeviceRequest{Capabilities: [][]string{{"gpu"}}}
	switch {
	case d.AllGPUs:
		gpus.Count = -1
	case len(d.GPUDevices) > 0:
		gpus.DeviceIDs = d.GPUDevices[:n]
	default:
		gpus.Count = n
	}
	host.DeviceRequests = append(host.DeviceRequests, gpus)
}
