package sandboxes

import (
	"context"
	"fmt"
	"reflect"

	"github.com/turngate/turngate/schema"
)

// Alone implements the container methods of Sandbox for backends without
// containers. Such backends embed it.
type Alone struct{}

// Argv implements Sandbox.
func (Alone) Argv() []string { return nil }

// Health implements Sandbox.
func (Alone) Health() *schema.Probe { return nil }

// Online implements Sandbox.
func (Alone) Online(context.Context, bool) error { return NotOnline() }

// Service implements Sandbox.
func (Alone) Service(name string) (Sandbox, error) { return nil, NoService(name) }

// CanSnapshot implements Sandbox.
func (Alone) CanSnapshot() error { return NoSnapshots("this kind of sandbox cannot be copied") }

// Snapshot implements Sandbox.
func (a Alone) Snapshot(context.Context, int64) (Snapshot, error) { return nil, a.CanSnapshot() }

// NoSnapshots returns the error of Snapshot with a reason.
func NoSnapshots(reason string) error {
	return &UnsupportedError{Field: "snapshot", Value: "true", Reason: reason}
}

// NoService returns the error of Service for a name that the Spec does not
// have.
func NoService(name string) error {
	return &UnsupportedError{Field: "service", Value: name, Reason: "the sandbox has no side-car of this name"}
}

// RefuseContainers returns an *UnsupportedError if s asks for containers or
// their settings. Backends without containers call it.
func RefuseContainers(s Spec, backend string) error {
	no := func(field, value string) error {
		return &UnsupportedError{Field: field, Value: value, Reason: fmt.Sprintf("the %s sandbox has no containers; use the docker sandbox", backend)}
	}
	switch c := s.Container; {
	case len(s.Services) > 0:
		return no("sandbox.services", s.Services[0].Name)
	case len(s.Folders) > 0:
		return no("sandbox.folders", s.Folders[0].Name)
	case !reflect.ValueOf(c).IsZero():
		return no("sandbox.container", fmt.Sprintf("%+v", schema.Container{Entrypoint: c.Entrypoint, Command: c.Command, Hostname: c.Hostname}))
	}
	return nil
}
