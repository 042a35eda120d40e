package front

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, testenv.ServerGoroutines()...)
}

// Tokens of the trainers alpha and beta.
const (
	alphaToken = "token-of-alpha"
	betaToken  = "token-of-beta"
)

// bench is a pool with a front.
type bench struct {
	*testenv.Pool
	t         *testing.T
	url       string
	described *operations
}

// tokensOf writes a file of tokens for the trainers of a pool.
func tokensOf(t *testing.T, p *testenv.Pool) *Tokens {
	t.Helper()
	var text strings.Builder
	for trainer, token := range map[string]string{"alpha": alphaToken, "beta": betaToken} {
		sum := sha256.Sum256([]byte(token))
		fmt.Fprintf(&text, "- {trainer: %s, sha256: %s, creds: %q}\n", trainer, hex.EncodeToString(sum[:]), p.Server.TrainerCreds(trainer))
	}
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	harness.Must(t, os.WriteFile(file, []byte(text.String()), 0o600))
	tokens, err := ReadTokens(file)
	harness.Must(t, err)
	return tokens
}

// newBench starts a pool with a front that shows events.
func newBench(t *testing.T) *bench {
	t.Helper()
	p := testenv.StartPool(t)
	p.NewTrainer(t, "beta")
	all, err := described()
	harness.Must(t, err)
	b := &bench{Pool: p, t: t, described: all}
	b.url, _ = b.start()
	return b
}

// start starts a front and returns its URL. It stops when the test ends or stop is called.
func (b *bench) start() (url string, stop func()) { return b.startCounted(nil) }

// startCounted is start, with metrics.
func (b *bench) startCounted(h *telemetry.HTTP) (url string, stop func()) {
	b.t.Helper()
	events := b.Dial(b.t, b.Server.OpsCreds(), broker.InboxFor(broker.RoleOps, broker.RoleOps))
	s, err := Listen(b.t.Context(), Config{URL: b.Server.URL(), Tokens: tokensOf(b.t, b.Pool), Events: events, Listen: "127.0.0.1:0", HTTP: h, Log: zerolog.Nop()})
	harness.Must(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(stop)
	return "http://" + s.Address(), stop
}

// request makes a request with a token.
func (b *bench) request(method, path, token string, body any) *http.Request {
	b.t.Helper()
	var from io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		harness.Must(b.t, err)
		from = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, from)
	harness.Must(b.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// do sends a request, checks the status and reads the answer.
func (b *bench) do(r *http.Request, status int, into any) {
	b.t.Helper()
	got, data := b.send(r)
	if got != status {
		b.t.Fatalf("%s %s: status %d, want %d: %s", r.Method, r.URL.Path, got, status, data)
	}
	if into != nil {
		harness.Must(b.t, json.Unmarshal(data, into))
	}
}

// send sends a request and returns the status and the body of the answer, which is compared
// with the description.
func (b *bench) send(r *http.Request) (int, []byte) {
	b.t.Helper()
	var sent []byte
	if r.Body != nil && r.ContentLength > 0 {
		var err error
		sent, err = io.ReadAll(r.Body)
		harness.Must(b.t, err)
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	harness.Must(b.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	harness.Must(b.t, err)
	b.described.check(b.t, r, sent, res.StatusCode, res.Header.Get("Content-Type"), data)
	return res.StatusCode, data
}

func (b *bench) call(method, path string, body any, status int, into any) {
	b.t.Helper()
	b.do(b.request(method, path, alphaToken, body), status, into)
}

// plain returns a request without an id.
func plainRequest() schema.Request {
	q := harness.Request("alpha-1")
	q.ID, q.Trainer = "", ""
	return q
}

// finish ends the rollout that a worker takes next.
func (b *bench) finish(reward float64) schema.ID {
	b.t.Helper()
	j := b.Take(b.t)
	q := j.Request
	harness.Must(b.t, j.Done(b.t.Context(), schema.Result{ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name, Labels: q.Labels, Status: schema.StatusDone, Reward: &reward, Worker: "w1"}))
	return q.ID
}
