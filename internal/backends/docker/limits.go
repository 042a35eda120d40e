package docker

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// limits has the limits that an engine supports.
type limits struct {
	api *client.Client

	mu      sync.Mutex
	known   bool
	cpus    int
	cpu     bool
	memory  bool
	pids    bool
	noQuota error // the reason why it cannot limit a container's disk; nil: it can, or not known yet
}

// ask queries the engine once.
func (l *limits) ask(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known {
		return nil
	}
	info, err := l.api.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the limits of the Docker engine: %w", err)
	}
	l.cpus, l.cpu, l.memory, l.pids, l.known = info.NCPU, info.CPUCfsQuota, info.MemoryLimit, info.PidsLimit, true
	return nil
}

// fit changes limits to values that the engine can enforce. It notes a weaker
// limit, or refuses it if it is strict.
func (l *limits) fit(ctx context.Context, s *sandboxes.Spec) error {
	if err := l.ask(ctx); err != nil {
		return err
	}
	if s.CPUs > 0 && !l.cpu {
		if err := s.Weaken(schema.LimitCPUs, s.CPUs, "this Docker engine has no cpu controller"); err != nil {
			return err
		}
		s.CPUs = 0
	}
	if s.CPUs > float64(l.cpus) {
		if err := s.Weaken(schema.LimitCPUs, s.CPUs, fmt.Sprintf("the engine's host has %d", l.cpus)); err != nil {
			return err
		}
		s.CPUs = 0
	}
	if s.MemoryBytes > 0 && !l.memory {
		if err := s.Weaken(schema.LimitMemory, s.MemoryBytes, "this Docker engine has no memory controller"); err != nil {
			return err
		}
		s.MemoryBytes = 0
	}
	if err := s.Raise(); err != nil {
		return err
	}
	if s.Pids > 0 && !l.pids {
		if err := s.Weaken(schema.LimitPids, s.Pids, "this Docker engine has no pids controller"); err != nil {
			return err
		}
	}
	for i := range s.Services {
		sub := &s.Services[i]
		if sub.Spec.CPUs > float64(l.cpus) || sub.Spec.CPUs > 0 && !l.cpu {
			if err := s.Weaken(schema.LimitCPUs, sub.Spec.CPUs, fmt.Sprintf("it is the figure of side-car %s, and the engine's host has %d", sub.Name, l.cpus)); err != nil {
				return err
			}
			sub.Spec.CPUs = 0
		}
		if !l.memory {
			sub.Spec.MemoryBytes = 0
		}
	}
	if why := l.quota(); why != nil && s.DiskBytes > 0 && slices.Contains(s.Strict, schema.LimitDisk) {
		return s.Weaken(schema.LimitDisk, s.DiskBytes, noQuota(why)) // refuse before an image is built
	}
	return nil
}

// fitShares raises the parts of a divided limit to the smallest that the engine
// accepts.
func fitShares(s *sandboxes.Spec) {
	parts := []*sandboxes.Spec{s}
	for i := range s.Services {
		parts = append(parts, &s.Services[i].Spec)
	}
	for _, p := range parts {
		if p.MemoryBytes > 0 {
			p.MemoryBytes = max(p.MemoryBytes, sandboxes.LeastMemoryBytes)
		}
		if p.CPUs > 0 {
			p.CPUs = max(p.CPUs, sandboxes.LeastCPUs)
		}
		if p.Pids > 0 {
			p.Pids = max(p.Pids, sandboxes.LeastPids)
		}
	}
}

func noQuota(why error) string {
	return fmt.Sprintf("this Docker engine cannot limit a container's disk (%v)", why)
}

// diskParts returns the limit of all containers, and the part of each as text if
// there are side-cars.
func diskParts(s *sandboxes.Spec) (total int64, text string) {
	total = s.DiskBytes
	if len(s.Services) == 0 {
		return total, ""
	}
	text = fmt.Sprintf("; %s may write %d of them", schema.MainService, s.DiskBytes)
	for _, sub := range s.Services {
		total += sub.Spec.DiskBytes
		text += fmt.Sprintf(", %s %d", sub.Name, sub.Spec.DiskBytes)
	}
	return total, text
}

// quota returns the recorded reason why the engine cannot limit a container's
// disk. It returns nil if none is recorded.
func (l *limits) quota() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.noQuota
}

// create creates a container with a disk limit if the engine supports
// one. Otherwise the box watches the bytes written.
func (l *limits) create(ctx context.Context, s *sandboxes.Spec, make func(quota bool) (container.CreateResponse, error)) (container.CreateResponse, error) {
	why := l.quota()
	if why == nil && s.DiskBytes > 0 {
		created, err := make(true)
		if err == nil || errdefs.IsNotFound(err) || errdefs.IsConflict(err) || ctx.Err() != nil {
			return created, err
		}
		why = err
	}
	if s.DiskBytes > 0 {
		total, parts := diskParts(s)
		if err := s.Weaken(schema.LimitDisk, total, noQuota(why)+"; written bytes are watched"+parts); err != nil {
			return container.CreateResponse{}, err
		}
	}
	created, err := make(false)
	if err == nil && why != nil {
		l.mu.Lock()
		l.noQuota = why
		l.mu.Unlock()
	}
	return created, err
}
