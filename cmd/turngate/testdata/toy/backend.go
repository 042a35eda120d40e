// Package toy makes sandboxes of the local backend under another name.
package toy

import (
	"context"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/sandboxes"
)

// Backend makes local sandboxes. Each image has the files of the host.
type Backend struct{ *local.Backend }

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "toy", Images: true, Works: "the toy works", Remedy: "buy a toy",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			return Backend{&local.Backend{Helper: h.Helper, StateDir: h.StateDir}}, nil
		},
	}
}

// Name implements sandboxes.Backend.
func (b Backend) Name() string { return Kind().Name }

// Create implements sandboxes.Backend.
func (b Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	s.Image = ""
	return b.Backend.Create(ctx, s)
}
