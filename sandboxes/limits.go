package sandboxes

import (
	"fmt"
	"slices"
)

// Limits of a Spec that names none.
const (
	// DefaultPids protects the host from a fork bomb.
	DefaultPids = 4096
	// DefaultDiskBytes applies in backends that keep sandboxes on the host's
	// disk.
	DefaultDiskBytes = 32 << 30
)

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
