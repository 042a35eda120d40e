package docker

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// engine records the limits that this engine supports.
type engine struct {
	mu      sync.Mutex
	known   bool
	cpus    int
	cpu     bool
	memory  bool
	pids    bool
	noQuota error // the reason why it cannot limit a container's disk; nil: it can, or not known yet
}

// ask queries the engine once.
func (b *Backend) ask(ctx context.Context) error {
	e := &b.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known {
		return nil
	}
	info, err := b.api.Info(ctx)
	if err != nil {
		return fmt.Errorf("read the limits of the Docker engine: %w", err)
	}
	e.cpus, e.cpu, e.memory, e.pids, e.known = info.NCPU, info.CPUCfsQuota, info.MemoryLimit, info.PidsLimit, true
	return nil
}

// fit changes limits to values that the engine can enforce. It notes a weaker
// limit, or refuses it if it is strict.
func (b *Backend) fit(ctx context.Context, s *sandboxes.Spec) error {
	if err := b.ask(ctx); err != nil {
		return err
	}
	e := &b.engine
	if s.CPUs > 0 && !e.cpu {
		if err := s.Weaken(schema.LimitCPUs, s.CPUs, "this Docker engine has no cpu controller"); err != nil {
			return err
		}
		s.CPUs = 0
	}
	if s.CPUs > float64(e.cpus) {
		if err := s.Weaken(schema.LimitCPUs, s.CPUs, fmt.Sprintf("this host has %d", e.cpus)); err != nil {
			return err
		}
		s.CPUs = 0
	}
	if s.MemoryBytes > 0 && !e.memory {
		if err := s.Weaken(schema.LimitMemory, s.MemoryBytes, "this Docker engine has no memory controller"); err != nil {
			return err
		}
		s.MemoryBytes = 0
	}
	if err := s.Raise(); err != nil {
		return err
	}
	if s.Pids > 0 && !e.pids {
		if err := s.Weaken(schema.LimitPids, s.Pids, "this Docker engine has no pids controller"); err != nil {
			return err
		}
	}
	for i := range s.Services {
		sub := &s.Services[i]
		if sub.Spec.CPUs > float64(e.cpus) || sub.Spec.CPUs > 0 && !e.cpu {
			if err := s.Weaken(schema.LimitCPUs, sub.Spec.CPUs, fmt.Sprintf("it is the figure of side-car %s, and this host has %d", sub.Name, e.cpus)); err != nil {
				return err
			}
			sub.Spec.CPUs = 0
		}
		if !e.memory {
			sub.Spec.MemoryBytes = 0
		}
	}
	if why := b.quota(); why != nil && s.DiskBytes > 0 && slices.Contains(s.Strict, schema.LimitDisk) {
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
func (b *Backend) quota() error {
	b.engine.mu.Lock()
	defer b.engine.mu.Unlock()
	return b.engine.noQuota
}

// createLimited creates a container with a disk limit if the engine supports
// one. Otherwise the box watches the bytes written.
func (b *Backend) createLimited(ctx context.Context, s *sandboxes.Spec, make func(quota bool) (container.CreateResponse, error)) (container.CreateResponse, error) {
	why := b.quota()
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
		b.engine.mu.Lock()
		b.engine.noQuota = why
		b.engine.mu.Unlock()
	}
	return created, err
}
