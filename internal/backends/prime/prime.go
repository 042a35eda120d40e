// Package prime makes sandboxes at Prime Intellect, or at a server with its API. A sandbox
// of turngate is a local sandbox in one of Prime's, which is a virtual machine: the program
// there is turngate itself, far.Serve, and its input and output travel through Prime's
// gateway.
package prime

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "prime", Asked: func(h sandboxes.Host) bool { return h.Prime.Image != "" }, Works: "Prime makes sandboxes of the image, and namespaces work in them", Remedy: "do as the line above says, or leave out --prime",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			s := h.Prime
			if err := CheckSettings(s); err != nil {
				return nil, err
			}
			client := hosted.Client(hosted.Transport())
			return hosted.NewBackend(hosted.Settings{
				Name: "prime", Service: "Prime", Origin: "the image makes a", Helper: h.Helper, Sandboxes: s.Sandboxes, PerMinute: s.PerMinute, Warn: h.Warn,
			}, &control{hosted.Service{
				Name: "Prime", URL: apiOf(cmp.Or(s.APIURL, "https://api.primeintellect.ai")), Header: http.Header{"Authorization": {"Bearer " + s.Key}}, Client: client,
			}, s}), nil
		},
	}
}

// apiOf returns the URL of the control plane for one with or without its path.
func apiOf(base string) string {
	const path = "/api/v1"
	return strings.TrimSuffix(strings.TrimRight(base, "/"), path) + path
}

// CheckSettings returns an error that names the first setting that is not valid.
func CheckSettings(s sandboxes.Prime) error {
	if s.Image != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./:@-]{0,299}$`).MatchString(s.Image) {
		return fmt.Errorf("the image %q is not valid: want a reference such as debian:bookworm", schema.Clip(s.Image, 100))
	}
	if s.Team != "" && !regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`).MatchString(s.Team) {
		return fmt.Errorf("PRIME_TEAM_ID: %q is not valid: want the id of a team", schema.Clip(s.Team, 100))
	}
	if err := hosted.CheckURL("PRIME_API_BASE_URL", s.APIURL, "https://api.primeintellect.ai"); err != nil {
		return err
	}
	for _, size := range []struct {
		name  string
		value float64
	}{{"cpus", s.CPUs}, {"memory-gb", s.MemoryGB}, {"disk-gb", s.DiskGB}} {
		if !(size.value >= 0) || math.IsInf(size.value, 1) { // NaN is not below 0
			return fmt.Errorf("the size of the sandboxes is not valid: --prime-%s %g: want 0 or more", size.name, size.value)
		}
	}
	return hosted.CheckBounds(s.Sandboxes, s.PerMinute)
}

var (
	errNoImage = fmt.Errorf("%w: name an image for the sandboxes of Prime Intellect with --prime IMAGE", sandboxes.ErrNotAsked)
	errNoKey   = errors.New("the key of Prime Intellect is missing: set PRIME_API_KEY, or PRIME_API_KEY_FILE to the path of a file that has it")
)

// Usable implements hosted.Provider.
func (c *control) Usable() error {
	if c.settings.Image == "" {
		return errNoImage
	}
	if c.settings.Key == "" {
		return errNoKey
	}
	return nil
}
