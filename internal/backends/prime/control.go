package prime

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// control is the client of Prime's control plane, with the settings of the sandboxes.
type control struct {
	hosted.Service
	settings sandboxes.Prime
}

// newSandbox is the body of a request for a sandbox.
type newSandbox struct {
	Name     string   `json:"name"`
	Image    string   `json:"docker_image"`
	CPUs     float64  `json:"cpu_cores"`
	MemoryGB float64  `json:"memory_gb"`
	DiskGB   float64  `json:"disk_size_gb"`
	GPUs     int      `json:"gpu_count"`
	VM       bool     `json:"vm"`
	Life     int64    `json:"timeout_minutes"`
	Idle     int64    `json:"idle_timeout_minutes"` // without a request and an open stream
	Labels   []string `json:"labels"`
	Team     string   `json:"team_id,omitempty"`
	Key      string   `json:"idempotency_key"` // requests with the same one make one sandbox
}

// made is a sandbox as the control plane answers it.
type made struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Status  string   `json:"status"`
	Labels  []string `json:"labels"`
	Build   string   `json:"pendingImageBuildId"` // of the image; empty: none is awaited
	Type    string   `json:"errorType"`
	Message string   `json:"errorMessage"`
	Reason  string   `json:"terminationReason"`
}

// The beginnings of the labels of a sandbox.
const (
	labelOwner   = "turngate-owner-"
	labelRollout = "turngate-rollout-"
	labelRun     = "turngate-run-"
)

// label returns the rest of the first label that begins with prefix.
func (m *made) label(prefix string) string {
	for _, l := range m.Labels {
		if rest, ok := strings.CutPrefix(l, prefix); ok {
			return rest
		}
	}
	return ""
}

// ended returns the reason if the sandbox runs no more and will not run.
func (m *made) ended() error {
	if !slices.Contains([]string{"ERROR", "TERMINATED", "TIMEOUT"}, m.Status) {
		return nil
	}
	text := "ended by Prime: " + m.Status
	for _, more := range []string{m.Type, m.Message, m.Reason} {
		if more != "" {
			text += ", " + more
		}
	}
	return errors.New(plain.Line(text, far.MaxSays))
}

// path returns the path of a sandbox.
func path(id string) string { return "/sandbox/" + url.PathEscape(id) }

// create asks once for a sandbox.
func (c *control) create(ctx context.Context, n *newSandbox) (made, error) {
	var m made
	_, err := c.Ask(ctx, http.MethodPost, "/sandbox", n, &m)
	if err == nil && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`).MatchString(m.ID) { // paths contain it
		err = fmt.Errorf("the sandbox of Prime's answer has no valid id: %q", plain.Line(m.ID, 100))
	}
	return m, err
}

func (c *control) show(ctx context.Context, id string) (made, error) {
	var m made
	_, err := c.Ask(ctx, http.MethodGet, path(id), nil, &m)
	return m, err
}

// list lists the sandboxes with this label that have not ended.
func (c *control) list(ctx context.Context, label string) ([]made, error) {
	query := url.Values{"labels": {label}, "is_active": {"true"}, "per_page": {"50"}}
	if c.settings.Team != "" {
		query.Set("team_id", c.settings.Team)
	}
	var all []made
	for page := 1; page <= hosted.MostPages; page++ {
		query.Set("page", strconv.Itoa(page))
		var answer struct {
			Sandboxes []made `json:"sandboxes"`
			Next      bool   `json:"hasNext"`
		}
		if _, err := c.Ask(ctx, http.MethodGet, "/sandbox?"+query.Encode(), nil, &answer); err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, m := range answer.Sandboxes {
			if slices.Contains(m.Labels, label) && m.ended() == nil {
				all = append(all, m)
			}
		}
		if !answer.Next || len(answer.Sandboxes) == 0 {
			return all, nil
		}
	}
	return nil, fmt.Errorf("list the sandboxes: Prime has more than %d pages", hosted.MostPages)
}

// Bounds of the life of a machine: its time beyond the life of the sandbox, and the most that
// Prime's own client names.
const (
	extraLife = time.Hour
	mostLife  = 24 * time.Hour
)

func minutes(d time.Duration) int64 { return int64(math.Ceil(d.Minutes())) }

// Make implements hosted.Provider.
func (c *control) Make(ctx context.Context, s *sandboxes.Spec) (*hosted.Rented, error) {
	n := &newSandbox{
		Name: "turngate-" + strings.ToLower(rand.Text()), Image: c.settings.Image, VM: true, Team: c.settings.Team,
		CPUs: cmp.Or(c.settings.CPUs, 2), MemoryGB: cmp.Or(c.settings.MemoryGB, 4), DiskGB: cmp.Or(c.settings.DiskGB, 10),
		Life: minutes(mostLife), Idle: minutes(hosted.Kept(s.Lost)), Key: rand.Text(),
		Labels: []string{labelOwner + s.Owner, labelRollout + string(s.Rollout), labelRun + s.RunID()},
	}
	if s.Life > 0 {
		n.Life = minutes(min(s.Life+extraLife, mostLife))
	}
	m, err := c.create(ctx, n)
	if hosted.MayHave(err) {
		hosted.Forget(ctx, c, func(ctx context.Context) (ids []string, err error) {
			list, err := c.list(ctx, n.Labels[0])
			for i := range list {
				if list[i].Name == n.Name {
					ids = append(ids, list[i].ID)
				}
			}
			return ids, err
		})
	}
	if err != nil {
		return nil, err
	}
	machine := &machine{id: m.ID, control: c, first: m}
	return &hosted.Rented{ID: m.ID, Remote: machine, Ready: machine.ready}, nil
}

// List implements hosted.Provider.
func (c *control) List(ctx context.Context, owner string) (found []hosted.Found, err error) {
	list, err := c.list(ctx, labelOwner+owner)
	for i := range list {
		found = append(found, hosted.Found{ID: list[i].ID, Rollout: schema.ID(list[i].label(labelRollout))})
	}
	return found, err
}

// Remove implements hosted.Provider.
func (c *control) Remove(ctx context.Context, id string) error {
	_, err := c.Ask(ctx, http.MethodDelete, path(id), nil, nil)
	return err
}
