package e2b

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/e2b/envd/envdconnect"
	"github.com/turngate/turngate/sandboxes/far"
)

// machine is a sandbox of E2B.
type machine struct {
	*far.Host
	id, url, token string
	control        *control
	files          *http.Client
	processes      envdconnect.ProcessClient

	over chan struct{} // closed by end
	once sync.Once
	why  error // valid after over
}

// end breaks the line to the machine. It keeps the first reason.
func (m *machine) end(why error) {
	m.once.Do(func() {
		m.why = why
		close(m.over)
	})
}

// envdPort is the port of envd in a sandbox, envdUser the user of commands and files.
const (
	envdPort = 49983
	envdUser = "root"
)

// make lets E2B make a sandbox, when it is the turn of this request. While E2B asks for a
// pause, all requests of this backend wait.
func (b *Backend) make(ctx context.Context, s *sandboxes.Spec, lease time.Duration) (*machine, error) {
	mark := rand.Text()
	n := &newSandbox{
		Template: b.settings.Template, Timeout: int64(lease.Seconds()), Secure: true,
		Metadata: map[string]string{metaOwner: far.Owner(s.Owner), metaRollout: string(s.Rollout), metaRun: s.RunID(), metaCreate: mark},
	}
	wait := backoff{}
	for {
		if err := b.pace.turn(ctx); err != nil {
			return nil, err
		}
		made, err := b.control.create(ctx, n)
		if err == nil {
			return b.machineOf(&made), nil
		}
		if !hasStatus(err, http.StatusTooManyRequests) {
			b.forget(ctx, mark, err)
			return nil, err
		}
		pause := wait.next(err)
		s.Log(fmt.Sprintf("%s; another try in %s", err, pause.Round(time.Second)))
		b.pace.hold(time.Now().Add(pause))
		if until, ok := ctx.Deadline(); ok && time.Until(until) < pause {
			return nil, fmt.Errorf("no time is left for another try: %w", err)
		}
	}
}

// forget removes a sandbox whose request may have succeeded although no answer came. One
// that comes up later ends with its lease.
func (b *Backend) forget(ctx context.Context, mark string, err error) {
	var no *refusedError
	if errors.As(err, &no) && no.status < 500 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	list, err := b.control.list(ctx, metaCreate, mark)
	for _, m := range list {
		if err == nil {
			_, err = b.control.kill(ctx, m.ID)
		}
	}
}

func (b *Backend) machineOf(m *made) *machine {
	base := strings.TrimSuffix(b.settings.SandboxURL, "/")
	if base == "" {
		domain := b.settings.Domain
		if m.Domain != "" {
			domain = m.Domain
		}
		base = fmt.Sprintf("https://%d-%s.%s", envdPort, m.ID, domain)
	}
	with := http.Header{}
	with.Set("E2b-Sandbox-Id", m.ID)
	with.Set("E2b-Sandbox-Port", strconv.Itoa(envdPort))
	files := clientOf(&headed{b.client.Transport, with.Clone()})
	with.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(envdUser+":")))
	with.Set("Keepalive-Ping-Interval", strconv.Itoa(int(pingEvery.Seconds())))
	if m.Token != "" {
		with.Set("X-Access-Token", m.Token)
	}
	return &machine{
		Host: far.NewHost("e2b", "the E2B sandbox "+m.ID), id: m.ID, url: base, token: m.Token, control: b.control, files: files, over: make(chan struct{}),
		processes: envdconnect.NewProcessClient(clientOf(&headed{b.client.Transport, with}), base, connect.WithReadMaxBytes(maxEvent), connect.WithAcceptCompression("gzip", nil, nil)),
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

// Bounds of an upload.
const (
	uploadTime = 10 * time.Minute
	signedFor  = time.Hour // the clocks of both sides may differ
)

// put stores a file of this host under a path that is relative to the home of envdUser.
func (m *machine) put(ctx context.Context, file, path string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	var frame bytes.Buffer
	form := multipart.NewWriter(&frame)
	if _, err := form.CreateFormFile("file", "turngate"); err != nil {
		return fmt.Errorf("write a form: %w", err)
	}
	head := frame.Len()
	if err := form.Close(); err != nil {
		return fmt.Errorf("write a form: %w", err)
	}
	all := frame.Bytes()
	ctx, cancel := context.WithTimeoutCause(ctx, uploadTime, fmt.Errorf("%s: turngate did not arrive within %s", m.Called, uploadTime))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.signed("write", path, time.Now().Add(signedFor)), io.MultiReader(bytes.NewReader(all[:head]), f, bytes.NewReader(all[head:])))
	if err != nil {
		return fmt.Errorf("%s: send turngate: %w", m.Called, err)
	}
	req.ContentLength = int64(len(all)) + info.Size()
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := m.files.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: send turngate: %w", m.Called, withoutURL(err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: send turngate: %w", m.Called, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: send turngate: %w", m.Called, refused(res, body))
	}
	var stored []json.RawMessage
	if err := json.Unmarshal(body, &stored); err != nil || len(stored) != 1 {
		return fmt.Errorf("%s: send turngate: envd has not stored it", m.Called)
	}
	return nil
}

// withoutURL removes the URL, which has a signature, from an error of http.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
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
