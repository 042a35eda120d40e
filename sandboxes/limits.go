package sandboxes

import (
	"errors"
	"fmt"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Limits of a Spec that names none.
const (
	// DefaultPids protects the host from a fork bomb.
	DefaultPids = 4096
	// DefaultDiskBytes applies in backends that keep sandboxes on the host's
	// disk.
	DefaultDiskBytes = 32 << 30
)

// The least limits of a sandbox: its helper and a shell run with them.
const (
	LeastCPUs        = 0.01
	LeastMemoryBytes = 32 << 20
	LeastPids        = 16
	leastDiskBytes   = 4 << 20
)

// Raise raises limits to the least ones. It notes each raised limit, or refuses it
// if it is strict.
func (s *Spec) Raise() error {
	return errors.Join(
		raise(s, schema.LimitCPUs, &s.CPUs, LeastCPUs), raise(s, schema.LimitMemory, &s.MemoryBytes, LeastMemoryBytes),
		raise(s, schema.LimitPids, &s.Pids, LeastPids), raise(s, schema.LimitDisk, &s.DiskBytes, leastDiskBytes),
	)
}

func raise[T int64 | float64](s *Spec, limit string, value *T, least T) error {
	if *value == 0 || *value >= least {
		return nil
	}
	if err := s.Weaken(limit, *value, fmt.Sprintf("a sandbox needs %v or more", least)); err != nil {
		return err
	}
	*value = least
	return nil
}

// NotOnline returns the error of Online for a sandbox without the open network.
func NotOnline() error {
	return &UnsupportedError{Field: "sandbox.network", Value: "open", Reason: "the sandbox was made without it"}
}

// Weaken reports a limit that the backend cannot enforce as requested. If
// Strict names the limit, it returns an *UnsupportedError; otherwise it passes
// a sentence to Note.
func (s *Spec) Weaken(limit string, value any, reason string) error {
	if slices.Contains(s.Strict, limit) {
		return &UnsupportedError{Field: "sandbox." + limit, Value: fmt.Sprint(value), Reason: reason}
	}
	if s.Note != nil {
		s.Note(limit, fmt.Sprintf("sandbox.%s: %v is not enforced: %s", limit, value, reason))
	}
	return nil
}
