package sandboxes

import (
	"slices"

	"github.com/turngate/turngate/schema"
)

// mainPart is a divisor: the main container keeps at least 1/mainPart of the
// limit that remains after the named shares.
const mainPart = 2

// Shares divides the limits of a Spec among its containers. It returns the main
// container's part, with the parts of the side-cars in Services. A side-car
// that names a limit gets it. The others share up to half of the remainder
// equally, and the main container gets the rest. Named limits that leave nothing
// for the main container are reduced, with a note, or refused if the limit is
// strict. A limit of 0 gives no limit to the containers that name none.
func (s Spec) Shares() (Spec, error) {
	s.Services = slices.Clone(s.Services)
	if len(s.Services) == 0 {
		return s, nil
	}
	cpus := make([]*float64, len(s.Services))
	memory, disk, pids := make([]*int64, len(s.Services)), make([]*int64, len(s.Services)), make([]*int64, len(s.Services))
	for i := range s.Services {
		sub := &s.Services[i].Spec
		cpus[i], memory[i], disk[i], pids[i] = &sub.CPUs, &sub.MemoryBytes, &sub.DiskBytes, &sub.Pids
	}
	for limit, divide := range map[string]func() bool{
		schema.LimitCPUs:   func() bool { return share(&s.CPUs, cpus) },
		schema.LimitMemory: func() bool { return share(&s.MemoryBytes, memory) },
		schema.LimitDisk:   func() bool { return share(&s.DiskBytes, disk) },
		schema.LimitPids:   func() bool { return share(&s.Pids, pids) },
	} {
		if divide() {
			continue
		}
		if err := s.Weaken(limit, "each side-car's own figure", "together they leave nothing for the main container, so each gets a smaller share"); err != nil {
			return s, err
		}
	}
	return s, nil
}

// share replaces the total by the main container's part. It returns false if
// the parts that are named were too large, and were reduced in proportion.
func share[T int64 | float64](total *T, parts []*T) (fits bool) {
	if *total == 0 {
		return true
	}
	var named T
	unnamed := 0
	for _, p := range parts {
		named += *p
		if *p == 0 {
			unnamed++
		}
	}
	fits = named < *total
	if !fits {
		for _, p := range parts {
			*p = T(float64(*p) / float64(named) * float64(*total) / mainPart)
		}
		named = 0
		for _, p := range parts {
			named += *p
		}
	}
	left := *total - named
	if unnamed > 0 {
		each := left / mainPart / T(unnamed)
		for _, p := range parts {
			if *p == 0 {
				*p = each
				left -= each
			}
		}
	}
	*total = left
	return fits
}
