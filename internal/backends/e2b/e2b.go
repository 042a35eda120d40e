// Package e2b makes sandboxes at E2B, or at a server with its API. A sandbox of turngate
// is a local sandbox in one of E2B's: the program there is turngate itself, far.Serve,
// and its input and output travel through envd, E2B's daemon in each sandbox.
package e2b

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "e2b", Asked: func(h sandboxes.Host) bool { return h.E2B.Template != "" }, Works: "E2B makes sandboxes of the template, and namespaces work in them", Remedy: "do as the line above says, or leave out --e2b",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			s := h.E2B
			if err := CheckSettings(s); err != nil {
				return nil, err
			}
			s.Domain = cmp.Or(s.Domain, "e2b.app")
			s.APIURL = cmp.Or(s.APIURL, "https://api."+s.Domain)
			client := hosted.Client(hosted.Transport())
			return hosted.NewBackend(hosted.Settings{
				Name: "e2b", Service: "E2B", Origin: "the template makes a", Helper: h.Helper, Sandboxes: s.Sandboxes, PerMinute: s.PerMinute, Warn: h.Warn,
			}, &control{hosted.Service{Name: "E2B", URL: s.APIURL, Header: http.Header{"X-Api-Key": {s.Key}}, Client: client}, s}), nil
		},
	}
}

// CheckSettings returns an error that names the first setting that is not valid.
func CheckSettings(s sandboxes.E2B) error {
	if s.Template != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./:-]{0,199}$`).MatchString(s.Template) {
		return fmt.Errorf("the template %q is not valid: want its name or id, such as base", schema.Clip(s.Template, 100))
	}
	if s.Domain != "" && !regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+)?$`).MatchString(s.Domain) {
		return fmt.Errorf("E2B_DOMAIN: %q is not valid: want a domain such as e2b.app", schema.Clip(s.Domain, 100))
	}
	return errors.Join(
		hosted.CheckURL("E2B_API_URL", s.APIURL, "https://api.e2b.app"), hosted.CheckURL("E2B_SANDBOX_URL", s.SandboxURL, "https://api.e2b.app"),
		hosted.CheckBounds(s.Sandboxes, s.PerMinute),
	)
}

var (
	errNoTemplate = fmt.Errorf("%w: name a template of E2B with --e2b TEMPLATE", sandboxes.ErrNotAsked)
	errNoKey      = errors.New("the key of E2B is missing: set E2B_API_KEY, or E2B_API_KEY_FILE to the path of a file that has it")
)

// Usable implements hosted.Provider.
func (c *control) Usable() error {
	if c.settings.Template == "" {
		return errNoTemplate
	}
	if c.settings.Key == "" {
		return errNoKey
	}
	return nil
}
