// Package modal makes sandboxes at Modal, through Modal's own client. A sandbox of turngate
// is a local sandbox in a virtual machine of Modal: the program there is turngate itself,
// far.Serve, and Modal carries its input and output.
package modal

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// backend has the account for HangUp of the tests.
type backend struct {
	*hosted.Backend
	account *account
}

// DefaultApp is the app of the sandboxes if the settings name none.
const DefaultApp = "turngate"

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "modal", Asked: func(h sandboxes.Host) bool { return h.Modal.Image != "" }, Works: "Modal makes virtual machines of the image, and namespaces work in them", Remedy: "do as the line above says, or leave out --modal",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			s := h.Modal
			if err := CheckSettings(s); err != nil {
				return nil, err
			}
			a, err := open(s.Image, cmp.Or(s.App, DefaultApp))
			if err != nil {
				return nil, err
			}
			return &backend{hosted.NewBackend(hosted.Settings{
				Name: "modal", Service: "Modal", Origin: "the image makes a", Helper: h.Helper, Sandboxes: s.Sandboxes, PerMinute: s.PerMinute, Warn: h.Warn,
			}, a), a}, nil
		},
	}
}

// CheckSettings returns an error that names the first setting that is not valid.
func CheckSettings(s sandboxes.Modal) error {
	if s.Image != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}$`).MatchString(s.Image) {
		return fmt.Errorf("the image %q is not valid: want one of a registry, such as debian:bookworm", schema.Clip(s.Image, 100))
	}
	if s.App != "" && !regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`).MatchString(s.App) {
		return fmt.Errorf("the app %q is not valid: want 1 to 63 characters of A-Z, a-z, 0-9, ., _ and -", schema.Clip(s.App, 100))
	}
	return hosted.CheckBounds(s.Sandboxes, s.PerMinute)
}

// Size of a virtual machine without limits in the request, and its own need of memory.
const (
	defaultCores  = 1 // physical ones, with two CPUs each
	defaultMemory = 2 << 30
	extraMemory   = 512 << 20
)

// Bounds of the life of a sandbox at Modal.
const (
	mostLife     = 24 * time.Hour // Modal refuses more
	extraLife    = 15 * time.Minute
	cpusPerCore  = 2
	bytesPerUnit = 1 << 20
)

// paramsOf returns the settings of the virtual machine for a sandbox. The local sandbox in
// it enforces the limits.
func paramsOf(s *sandboxes.Spec) *modal.SandboxCreateParams {
	p := &modal.SandboxCreateParams{
		Runtime: modal.SandboxRuntimeVM, BlockNetwork: true,
		CPU: defaultCores, MemoryMiB: (defaultMemory + extraMemory) / bytesPerUnit,
		Timeout: mostLife, IdleTimeout: hosted.Kept(s.Lost).Truncate(time.Second),
	}
	if s.CPUs > 0 {
		p.CPU = s.CPUs / cpusPerCore
	}
	if s.MemoryBytes > 0 {
		p.MemoryMiB = int((s.MemoryBytes + extraMemory) / bytesPerUnit)
	}
	if s.Life > 0 {
		p.Timeout = min(s.Life+extraLife, mostLife).Truncate(time.Second)
	}
	return p
}
