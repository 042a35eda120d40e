package prime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/internal/backends/prime/session/sessionconnect"
)

// machine is a sandbox of Prime.
type machine struct {
	id      string
	control *control
	first   made
	late    time.Time // until then the gateway may not know the machine yet

	mu  sync.Mutex
	way *gateway // nil: none is valid
}

// Bounds of the waits for a machine. Without answers in time it counts as broken.
const (
	startPause = time.Second     // between two tries of a command
	closedTime = 2 * time.Minute // for the network
	lateTime   = 2 * time.Minute // for the gateway
)

// ready waits until the machine runs, and closes its network.
func (m *machine) ready(ctx context.Context, log func(string)) error {
	told := false
	now := m.first
	err := hosted.Poll(ctx, func() (bool, error) {
		if err := now.ended(); err != nil {
			return true, err
		}
		if now.Build != "" && !told {
			told = true
			log("Prime makes a machine of the image, which takes minutes the first time")
		}
		if now.Status == "RUNNING" {
			return true, nil
		}
		next, err := m.control.show(ctx, m.id)
		if err == nil {
			now = next
		}
		return now.Status == "RUNNING", err
	})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, closedTime, fmt.Errorf("its network is not closed by Prime within %s", closedTime))
	defer cancel()
	if err := m.closeNetwork(limited); err != nil {
		return err
	}
	m.late = time.Now().Add(lateTime)
	return nil
}

// closeNetwork lets Prime refuse all connections of the machine to the outside.
func (m *machine) closeNetwork(ctx context.Context) error {
	type policy struct {
		Allow []string `json:"allowlist"`
		Deny  []string `json:"denylist"`
	}
	method, body := http.MethodPut, any(policy{Allow: []string{}})
	return hosted.Poll(ctx, func() (bool, error) {
		var now struct {
			Applied bool   `json:"applied"`
			Policy  policy `json:"policy"`
		}
		if _, err := m.control.Ask(ctx, method, path(m.id)+"/egress-policy", body, &now); err != nil {
			return false, err
		}
		if now.Policy.Allow == nil || len(now.Policy.Allow) > 0 || now.Policy.Deny != nil {
			return true, errors.New("its network has another policy in the answer of Prime")
		}
		method, body = http.MethodGet, nil
		return now.Applied, nil
	})
}

// Gone implements hosted.Remote.
func (m *machine) Gone(ctx context.Context) error {
	now, err := m.control.show(ctx, m.id)
	if hosted.IsGone(err) {
		return errors.New("ended by Prime: it is not known any more")
	}
	if err != nil {
		return nil // it is not known
	}
	return now.ended()
}

// gateway is the way to a machine for some time.
type gateway struct {
	url, token string
	until      time.Time
	sessions   sessionconnect.CommandSessionClient
}

// margin is the time before the end of a token after which it is not used.
const margin = time.Minute

// gateway returns a way with a valid token.
func (m *machine) gateway(ctx context.Context) (*gateway, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.way != nil && time.Now().Before(m.way.until) {
		return m.way, nil
	}
	var auth struct {
		URL       string `json:"gateway_url"`
		Namespace string `json:"user_ns"`
		Job       string `json:"job_id"`
		Token     string `json:"token"`
		Expires   string `json:"expires_at"`
	}
	if _, err := m.control.Ask(ctx, http.MethodPost, path(m.id)+"/auth", nil, &auth); err != nil {
		return nil, fmt.Errorf("ask for a token: %w", err)
	}
	until, err := time.Parse(time.RFC3339, auth.Expires)
	if err != nil {
		until, err = time.Parse("2006-01-02T15:04:05.999999", auth.Expires) // of UTC
	}
	u, uerr := url.Parse(auth.URL)
	if err != nil || uerr != nil || u.Host == "" || u.Scheme != "https" && !strings.HasPrefix(m.control.URL, "http:") || auth.Namespace == "" || auth.Job == "" || auth.Token == "" {
		return nil, errors.New("the answer of Prime has no valid way to the sandbox")
	}
	base := strings.TrimRight(auth.URL, "/") + "/" + url.PathEscape(auth.Namespace) + "/" + url.PathEscape(auth.Job)
	client := hosted.Client(&bearer{m.control.Client.Transport, auth.Token})
	m.way = &gateway{
		url: base, token: auth.Token, until: until.Add(-margin),
		sessions: sessionconnect.NewCommandSessionClient(client, base, connect.WithReadMaxBytes(maxEvent), connect.WithAcceptCompression("gzip", nil, nil)),
	}
	return m.way, nil
}

// bearer adds a token to each request.
type bearer struct {
	to    http.RoundTripper
	token string
}

func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.to.RoundTrip(r)
}

// through calls f with a way to the machine, and once more if the gateway refuses its token.
func (m *machine) through(ctx context.Context, f func(*gateway) error) error {
	for again := false; ; again = true {
		g, err := m.gateway(ctx)
		if err != nil {
			return err
		}
		err = f(g)
		if again || connect.CodeOf(err) != connect.CodeUnauthenticated && !hosted.HasStatus(err, http.StatusUnauthorized) {
			return err
		}
		m.mu.Lock()
		if m.way == g {
			m.way = nil
		}
		m.mu.Unlock()
	}
}

// Put implements hosted.Remote.
func (m *machine) Put(ctx context.Context, file, path string) error {
	query := url.Values{"path": {path}, "sandbox_id": {m.id}}
	return m.through(ctx, func(g *gateway) error {
		body, err := m.control.Upload(ctx, hosted.Client(&bearer{m.control.Client.Transport, g.token}), g.url+"/upload?"+query.Encode(), file)
		if err != nil {
			return err
		}
		var stored struct {
			Success bool `json:"success"`
		}
		if err := json.Unmarshal(body, &stored); err != nil || !stored.Success {
			return errors.New("send turngate: Prime has not stored it")
		}
		return nil
	})
}
