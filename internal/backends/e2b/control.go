package e2b

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"regexp"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// control is the client of E2B's control plane, with the settings of the sandboxes.
type control struct {
	hosted.Service
	settings sandboxes.E2B
}

// Names in the metadata of E2B's sandboxes.
const (
	metaOwner   = "turngate_owner"
	metaRollout = "turngate_rollout"
	metaRun     = "turngate_run"
	metaCreate  = "turngate_create" // of one call of Make
)

// newSandbox is the body of a request for a sandbox.
type newSandbox struct {
	Template string            `json:"templateID"`
	Timeout  int64             `json:"timeout"` // in seconds
	Metadata map[string]string `json:"metadata"`
	Secure   bool              `json:"secure"`                // envd asks for a token
	Internet bool              `json:"allow_internet_access"` // false: no way out
}

// made is a sandbox as the control plane answers it.
type made struct {
	ID       string            `json:"sandboxID"`
	Token    string            `json:"envdAccessToken"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata"`
}

// Make implements hosted.Provider.
func (c *control) Make(ctx context.Context, s *sandboxes.Spec) (*hosted.Rented, error) {
	mark, lease := rand.Text(), hosted.Kept(s.Lost)
	m, err := c.create(ctx, &newSandbox{
		Template: c.settings.Template, Timeout: int64(lease.Seconds()), Secure: true,
		Metadata: map[string]string{metaOwner: s.Owner, metaRollout: string(s.Rollout), metaRun: s.RunID(), metaCreate: mark},
	})
	if hosted.MayHave(err) {
		hosted.Forget(ctx, c, func(ctx context.Context) (ids []string, err error) {
			list, err := c.list(ctx, metaCreate, mark)
			for _, m := range list {
				ids = append(ids, m.ID)
			}
			return ids, err
		})
	}
	if err != nil {
		return nil, err
	}
	return &hosted.Rented{
		ID: m.ID, Remote: c.machineOf(&m), Lease: lease,
		Renew: func(ctx context.Context) error {
			_, err := c.Ask(ctx, http.MethodPost, path(m.ID)+"/timeout", map[string]int64{"timeout": int64(lease.Seconds())}, nil)
			return err
		},
	}, nil
}

// create asks once for a sandbox.
func (c *control) create(ctx context.Context, n *newSandbox) (made, error) {
	var m made
	_, err := c.Ask(ctx, http.MethodPost, "/sandboxes", n, &m)
	if err == nil && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`).MatchString(m.ID) { // it is part of paths and of a host's name
		err = fmt.Errorf("E2B answers with a sandbox without a valid id: %q", plain.Line(m.ID, 100))
	}
	return m, err
}

// list lists the sandboxes with this value in their metadata.
func (c *control) list(ctx context.Context, key, value string) ([]made, error) {
	query := url.Values{"metadata": {url.QueryEscape(key) + "=" + url.QueryEscape(value)}, "limit": {"100"}}
	var all []made
	for range hosted.MostPages {
		var page []made
		head, err := c.Ask(ctx, http.MethodGet, "/v2/sandboxes?"+query.Encode(), nil, &page)
		if err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, m := range page {
			if m.Metadata[key] == value { // a server that knows no filter lists all
				all = append(all, m)
			}
		}
		next := head.Get("X-Next-Token")
		if next == "" || next == query.Get("nextToken") {
			return all, nil
		}
		query.Set("nextToken", next)
	}
	return nil, fmt.Errorf("list the sandboxes: E2B has more than %d pages", hosted.MostPages)
}

// List implements hosted.Provider.
func (c *control) List(ctx context.Context, owner string) (found []hosted.Found, err error) {
	list, err := c.list(ctx, metaOwner, owner)
	for _, m := range list {
		found = append(found, hosted.Found{ID: m.ID, Rollout: schema.ID(m.Metadata[metaRollout])})
	}
	return found, err
}

// Remove implements hosted.Provider.
func (c *control) Remove(ctx context.Context, id string) error {
	_, err := c.Ask(ctx, http.MethodDelete, path(id), nil, nil)
	return err
}

// path returns the path of a sandbox.
func path(id string) string { return "/sandboxes/" + url.PathEscape(id) }
