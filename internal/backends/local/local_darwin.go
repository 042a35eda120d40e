package local

import (
	"context"
	"fmt"
	"os"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// remedy is the advice for a host without Linux.
const remedy = "use --sandbox docker, or a sandbox on another host: ssh, machine, e2b or kubernetes"

// Create returns an *UnsupportedError.
func (b *Backend) Create(context.Context, sandboxes.Spec) (sandboxes.Sandbox, error) {
	return nil, b.needsLinux()
}

// Open returns an *UnsupportedError.
func (b *Backend) Open(context.Context, sandboxes.Spec) (*Line, error) { return nil, b.needsLinux() }

func (b *Backend) needsLinux() error {
	return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: b.Name(), Reason: "local needs the namespaces of Linux, and this is macOS; " + remedy}
}

// Sweep implements sandboxes.Backend: there is none to remove.
func (*Backend) Sweep(context.Context, string, func(schema.ID) bool) (int, error) { return 0, nil }

// BoxMain refuses: sandboxes run turngate for Linux.
func BoxMain([]string) int {
	fmt.Fprintln(os.Stderr, "box: this program is for macOS, and sandboxes need the one for Linux")
	return box.ExitConfig
}
