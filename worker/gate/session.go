package gate

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// Config describes a session.
type Config struct {
	Rollout   schema.ID
	Attempt   int
	ModelName string // what the agent is told its model is called
	Options   schema.GateOptions
	Model     Model
	Dialects  []Dialect
	// Tag tells what a call is to the rollout, by the agent's own habits; nil:
	// every call is a turn of the agent.
	Tag func(h http.Header, c *schema.Call) string
	// Tools are what the trainer runs for the agent; CallTool asks it.
	Tools    []schema.ToolSpec
	CallTool func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	Observer Observer // nil: nobody
	// Memory is shared by the sessions of a worker; nil: this one has 256 MiB.
	Memory *Memory
	// MaxHeld is how many bytes of bodies may be open, or kept for a retry, at
	// once; 0: 256 MiB.
	MaxHeld int64
	Timing  Timing
	Log     zerolog.Logger
}

// Session is an http.Handler for one execution of one rollout. Its key is
// random and its own, so a sandbox cannot reach another's session.
type Session struct {
	cfg      Config
	key      string
	routes   routes
	life     context.Context
	stop     context.CancelCauseFunc
	slots    chan struct{} // one per call that may be asked at once
	calls    sync.WaitGroup
	watch    *watch
	capped   sync.Once
	decoders []Decoder

	mu        sync.Mutex
	open      int         // requests
	reading   int64       // bytes of their bodies
	count     int         // calls numbered so far
	toolCalls int         // calls of tools
	alive     []*exchange // with a client, or kept for one that may come back
	recent    recent      // the newest calls
	stats     map[string]schema.CallStats
	committed []schema.Committed
	clock     clock
	// bytesPerToken is what the last answer's count said of its request.
	bytesPerToken float64
	edits         map[string]bool
}

// ErrEnded is the cause of calls that end with their session.
var ErrEnded = errors.New("the session has ended")

// Open starts a session. It lives until Close, or until the gate ends it by
// itself with a fault (see Done).
func Open(ctx context.Context, c Config) *Session {
	c.Timing = c.Timing.withDefaults()
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Memory == nil {
		c.Memory = NewMemory(defaultMemory)
	}
	watch := c.Memory.watch
	if c.Timing != (Timing{}).withDefaults() {
		watch = newWatch(c.Timing)
	}
	c.MaxHeld = cmp.Or(c.MaxHeld, defaultHeld)
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // never fails
	s := &Session{
		cfg: c, key: "tg-" + base64.RawURLEncoding.EncodeToString(secret), watch: watch,
		slots: make(chan struct{}, max(c.Options.MaxParallel, 1)), stats: map[string]schema.CallStats{}, edits: map[string]bool{},
	}
	s.life, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.routes.handle("GET /health", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, []byte(`{"status":"ok"}`)) })
	s.serveTools()
	lists := map[string][]Dialect{}
	for _, d := range c.Dialects {
		decoder := d.Decoder(c.Memory)
		s.decoders = append(s.decoders, decoder)
		for _, route := range d.Routes() {
			s.routes.handle(route, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, d, decoder) })
		}
		for _, route := range d.ModelsRoutes() {
			lists[route] = append(lists[route], d)
		}
	}
	for route, dialects := range lists {
		s.routes.handle(route, func(w http.ResponseWriter, r *http.Request) {
			d := dialects[0]
			for _, other := range dialects[1:] {
				if other.Sent(r) {
					d = other
				}
			}
			if s.admit(w, r, d) {
				write(w, http.StatusOK, d.Models(c.ModelName))
			}
		})
	}
	return s
}

// Key is what the agent must send as its API key.
func (s *Session) Key() string { return s.key }

// Done is closed when the session has ended; Fault then says why the gate
// ended it, or nil after Close.
func (s *Session) Done() <-chan struct{} { return s.life.Done() }

// Fault is why the gate ended the session by itself.
func (s *Session) Fault() *schema.Fault {
	var f *schema.Fault
	errors.As(context.Cause(s.life), &f)
	return f
}

// Close ends the session: open calls are given up, which their trainer is
// told, and later requests get 503. It returns when all that is done.
func (s *Session) Close() {
	s.mu.Lock() // no call is begun any more
	s.stop(ErrEnded)
	s.recent.drop(s.cfg.Memory)
	for _, x := range s.alive {
		x.hurry()
	}
	s.mu.Unlock()
	s.calls.Wait()
	for _, d := range s.decoders {
		d.Close()
	}
}

// Stats counts the calls by tag, and names the generations that reached the
// agent.
func (s *Session) Stats() (map[string]schema.CallStats, []schema.Committed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]schema.CallStats, len(s.stats))
	for k, v := range s.stats {
		out[k] = v
	}
	return out, append([]schema.Committed(nil), s.committed...)
}

// estimate is about how many tokens a request of this size has, as the trainer
// counted the last one; a token has about four bytes before there was one. The
// tokenizer is the trainer's, and asking it is no model call.
func (s *Session) estimate(size int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(float64(size)/cmp.Or(s.bytesPerToken, 4)) + 1
}

// Edits names the parameters of the agent's calls that an engine refused and
// that were left out.
func (s *Session) Edits() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.edits))
}

// Hold says that the agent itself stands still, or goes on.
func (s *Session) Hold(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.held = held
	s.clock.change(0, 0)
}

// Paused is how long every open call waited for a trainer that was absent or
// held, or the agent was held itself. The agent's own time stands still then.
func (s *Session) Paused() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.total()
}

// ServeHTTP implements http.Handler.
func (s *Session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "//") { // a base URL with a slash at its end
		r2 := *r
		u := *r.URL
		u.Path = path.Clean(u.Path)
		r2.URL = &u
		r = &r2
	}
	if serve := s.routes.find(r); serve != nil {
		serve(w, r)
	} else {
		refuse(w, s.cfg.Dialects[0], Refusal{http.StatusNotFound, "not_found", fmt.Sprintf("%s %s is not served here", r.Method, r.URL.Path)})
	}
}

// admit checks the key, in a time that tells no more than its length, and that
// the session lives.
func (s *Session) admit(w http.ResponseWriter, r *http.Request, d Dialect) bool {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key == "" {
			key = r.Header.Get(h)
		}
	}
	if subtle.ConstantTimeCompare([]byte(key), []byte(s.key)) != 1 {
		refuse(w, d, Refusal{http.StatusUnauthorized, "invalid_api_key", "The API key is not valid."})
		return false
	}
	if s.life.Err() != nil {
		refuse(w, d, Refusal{http.StatusServiceUnavailable, "ended", "This session has ended."})
		return false
	}
	return true
}

// end ends the session because of a fault.
func (s *Session) end(f *schema.Fault) { s.stop(f) }

// over refuses a call beyond a cap, and ends the session a little later, so
// that an agent that stops by itself can do so.
func (s *Session) over(f *schema.Fault) Refusal {
	s.capped.Do(func() {
		t := time.AfterFunc(s.cfg.Timing.Cap, func() { s.end(f) })
		context.AfterFunc(s.life, func() { t.Stop() })
	})
	return Refusal{http.StatusForbidden, f.Code, "No more model calls are allowed. Finish now."}
}

type nobody struct{}

func (nobody) CallBegan(int, *schema.Call)  {}
func (nobody) CallDelta(int, *schema.Delta) {}
func (nobody) CallEnded(int, CallEnd)       {}
func (nobody) ToolEnded(ToolEnd)            {}

// clock adds up the time during which calls are open and all of them idle, or
// the agent is held. It
// is guarded by the session's lock.
type clock struct {
	open, idle int
	held       bool
	since      time.Time // not zero while it counts
	spent      time.Duration
}

func (c *clock) change(open, idle int) {
	now := time.Now()
	if !c.since.IsZero() {
		c.spent += now.Sub(c.since)
		c.since = time.Time{}
	}
	c.open += open
	c.idle += idle
	if c.held || c.open > 0 && c.open == c.idle {
		c.since = now
	}
}

func (c *clock) total() time.Duration {
	if c.since.IsZero() {
		return c.spent
	}
	return c.spent + time.Since(c.since)
}

func write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func refuse(w http.ResponseWriter, d Dialect, f Refusal) {
	if f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	write(w, f.Status, d.Fail(f))
}
