package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/internal/backends/e2b/envd/envdconnect"
	"github.com/turngate/turngate/internal/backends/hosted"
)

// machine is a sandbox of E2B.
type machine struct {
	id, url, token string
	control        *control
	files          *http.Client
	processes      envdconnect.ProcessClient
}

// envdPort is the port of envd in a sandbox, envdUser the user of commands and files.
const (
	envdPort = 49983
	envdUser = "root"
)

func (c *control) machineOf(m *made) *machine {
	base := strings.TrimSuffix(c.settings.SandboxURL, "/")
	if base == "" {
		domain := c.settings.Domain
		if m.Domain != "" {
			domain = m.Domain
		}
		base = fmt.Sprintf("https://%d-%s.%s", envdPort, m.ID, domain)
	}
	with := http.Header{}
	with.Set("E2b-Sandbox-Id", m.ID)
	with.Set("E2b-Sandbox-Port", strconv.Itoa(envdPort))
	files := hosted.Client(&headed{c.Client.Transport, with.Clone()})
	with.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(envdUser+":")))
	if m.Token != "" {
		with.Set("X-Access-Token", m.Token)
	}
	return &machine{
		id: m.ID, url: base, token: m.Token, control: c, files: files,
		processes: envdconnect.NewProcessClient(hosted.Client(&headed{c.Client.Transport, with}), base, connect.WithReadMaxBytes(maxEvent), connect.WithAcceptCompression("gzip", nil, nil)),
	}
}

// headed adds headers to each request.
type headed struct {
	to   http.RoundTripper
	with http.Header
}

func (h *headed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range h.with {
		r.Header[name] = values
	}
	return h.to.RoundTrip(r)
}

// Gone implements hosted.Remote.
func (m *machine) Gone(ctx context.Context) error {
	if _, err := m.control.Ask(ctx, http.MethodGet, path(m.id), nil, nil); hosted.IsGone(err) {
		return errors.New("E2B has ended it: its time there was over, or somebody removed it")
	}
	return nil
}

// signedFor is the time for which a URL is valid. The clocks of both sides may differ.
const signedFor = time.Hour

// Put implements hosted.Remote.
func (m *machine) Put(ctx context.Context, file, path string) error {
	body, err := m.control.Upload(ctx, m.files, m.signed("write", path, time.Now().Add(signedFor)), file)
	if err != nil {
		return err
	}
	var stored []json.RawMessage
	if err := json.Unmarshal(body, &stored); err != nil || len(stored) != 1 {
		return errors.New("send turngate: envd has not stored it")
	}
	return nil
}

// signed returns a URL for one file, which needs no token. Without a token of the
// machine the URL has no signature.
func (m *machine) signed(operation, path string, until time.Time) string {
	query := url.Values{"path": {path}, "username": {envdUser}}
	if m.token != "" {
		expires := strconv.FormatInt(until.Unix(), 10)
		sum := sha256.Sum256([]byte(strings.Join([]string{path, operation, envdUser, m.token, expires}, ":")))
		query.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
		query.Set("signature_expiration", expires)
	}
	return m.url + "/files?" + query.Encode()
}
