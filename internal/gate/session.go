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

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

// Config describes a session.
type Config struct {
	Rollout   schema.ID
	Attempt   int
	ModelName string // the name of the model that the agent gets
	Options   schema.GateOptions
	Model     Model
	Dialects  []dialect.Dialect
	// Tag returns the kind of a call within the rollout, from the agent's
	// headers and the call; nil: every call is a turn of the agent.
	Tag func(h http.Header, c *schema.Call) string
	// Tools are the tools that the trainer runs for the agent, with CallTool.
	Tools    []schema.ToolSpec
	CallTool func(ctx context.Context, c schema.ToolCall) (schema.ToolResult, error)
	Observer Observer // nil: none
	// Memory is shared by the sessions of a worker; nil: 256 MiB for conversations and
	// 512 MiB for requests, for this session.
	Memory *Memory
	// MaxRetained bounds the memory of requests that are open or kept for a retry,
	// in bytes; 0: half of the worker's bound for requests, at most 256 MiB.
	MaxRetained int64
	Timing      Timing
	// Before is the closed session before this one in the same attempt: the new
	// session takes over its key, its numbers and its counts. Nil: this is the
	// first.
	Before *Session
	Log    zerolog.Logger
}

// Session is an http.Handler for one run of an agent: an attempt has one for each
// step. The sessions of an attempt have one random key, so a sandbox cannot use the
// sessions of another rollout.
type Session struct {
	cfg      Config
	key      string
	routes   routes
	life     context.Context
	stop     context.CancelCauseFunc
	slots    chan struct{} // one per call to the model that may run at once
	calls    sync.WaitGroup
	timers   *clientTimers
	refused  *schema.Fault // see Refused
	readers  []*history.Reader
	toolIDs  *canonical.Calls // of the attempt
	decoding sync.Mutex       // held while a body is decoded

	mu        sync.Mutex
	open      int            // requests
	retained  int64          // bytes of memory of open requests and calls
	count     int            // calls numbered so far
	toolCalls int            // calls of the trainer's tools
	alive     []*exchange    // calls with a client, or kept for a client that may return
	recent    history.Recent // the newest calls
	repeats   repeats
	stats     map[string]schema.CallStats
	costs     costs
	committed []schema.Committed
	clock     clock
	// bytesPerToken is the size of the last answered request divided by its
	// prompt tokens.
	bytesPerToken float64
	edits         map[string]bool
	limit         *schema.Fault // the first limit that refused a call; nil: none
}

// errEnded is the cause with which Close ends the session and its calls.
var errEnded = errors.New("the session has ended")

// Open starts a session. It lives until Close, or until a fault ends it (see
// Done).
func Open(ctx context.Context, c Config) *Session {
	c.Timing = c.Timing.withDefaults()
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	if c.Memory == nil {
		c.Memory = NewMemory(defaultMemory, 0)
	}
	timers := c.Memory.timers
	if c.Timing != (Timing{}).withDefaults() {
		timers = newClientTimers(c.Timing)
	}
	c.MaxRetained = cmp.Or(c.MaxRetained, min(defaultRetained, c.Memory.requests.Limit/2))
	secret := make([]byte, 24)
	_, _ = rand.Read(secret) // never fails
	s := &Session{
		cfg: c, key: "tg-" + base64.RawURLEncoding.EncodeToString(secret), timers: timers,
		slots: make(chan struct{}, max(c.Options.MaxParallel, 1)), stats: map[string]schema.CallStats{}, costs: costs{}, edits: map[string]bool{}, toolIDs: &canonical.Calls{},
	}
	if c.Before != nil {
		s.follow(c.Before)
	}
	s.life, s.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	s.routes.handle("GET /health", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, []byte(`{"status":"ok"}`)) })
	s.serveTools()
	lists := map[string][]dialect.Dialect{}
	for _, d := range c.Dialects {
		reader := history.NewReader(d, c.Memory.conversations, s.toolIDs.Own)
		s.readers = append(s.readers, reader)
		for _, route := range d.Routes() {
			s.routes.handle(route, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, d, reader) })
		}
		if refuser, ok := d.(dialect.Refuser); ok {
			routes, why := refuser.Refused()
			for _, route := range routes {
				s.routes.handle(route, func(w http.ResponseWriter, r *http.Request) {
					if s.admit(w, r, d) {
						refuse(w, d, why)
					}
				})
			}
		}
		for _, route := range d.ModelsRoutes() {
			lists[route] = append(lists[route], d)
		}
	}
	for route, dialects := range lists {
		models := func(w http.ResponseWriter, r *http.Request) {
			d := dialects[0]
			for _, other := range dialects[1:] {
				if other.Sent(r) {
					d = other
				}
			}
			if !s.admit(w, r, d) {
				return
			}
			switch name := r.PathValue("model"); name {
			case "":
				write(w, http.StatusOK, d.Models(c.ModelName))
			case c.ModelName:
				write(w, http.StatusOK, d.Model(c.ModelName))
			default:
				refuse(w, d, dialect.Refusal{Status: http.StatusNotFound, Code: "not_found", Message: fmt.Sprintf("There is no model %q.", name)})
			}
		}
		s.routes.handle(route, models)
		s.routes.handle(route+"/{model}", models)
	}
	return s
}

// follow takes over the key and the counts of an earlier session of the attempt.
func (s *Session) follow(before *Session) {
	before.mu.Lock()
	defer before.mu.Unlock()
	s.cfg.Before = nil
	s.key, s.count, s.toolCalls, s.bytesPerToken = before.key, before.count, before.toolCalls, before.bytesPerToken
	s.toolIDs = before.toolIDs // the agent may go on in the same conversation
	s.stats, s.costs = maps.Clone(before.stats), maps.Clone(before.costs)
	s.edits, s.committed = maps.Clone(before.edits), slices.Clone(before.committed)
}

// Calls returns the number of calls of the attempt so far.
func (s *Session) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Key returns the API key that the agent must send.
func (s *Session) Key() string { return s.key }

// Done is closed when the session has ended. Fault then returns the reason, or
// nil after Close.
func (s *Session) Done() <-chan struct{} { return s.life.Done() }

// Fault returns the fault that ended the session, or nil.
func (s *Session) Fault() *schema.Fault {
	var f *schema.Fault
	errors.As(context.Cause(s.life), &f)
	return f
}

// Limit returns the fault of the first limit that refused a call, or nil.
func (s *Session) Limit() *schema.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limit
}

// Close ends the session: it cancels the open calls, and returns when they have
// ended and a cancel was sent to their trainer. Later requests get 503.
func (s *Session) Close() {
	s.mu.Lock() // no new call can begin
	s.stop(errEnded)
	s.recent.Drop(s.cfg.Memory.conversations)
	for _, x := range s.alive {
		x.setDeadline()
	}
	s.mu.Unlock()
	s.calls.Wait()
	for _, r := range s.readers {
		r.Close()
	}
}

// Refused returns the fault with which the newest of the agent's own turns was refused,
// or nil if it was answered.
func (s *Session) Refused() *schema.Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// turned notes the end of one of the agent's own turns; nil: it was answered.
func (s *Session) turned(refused *schema.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = refused
}

// Stats returns counts of the calls by tag, and the generations that reached
// the agent.
func (s *Session) Stats() (map[string]schema.CallStats, []schema.Committed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]schema.CallStats, len(s.stats))
	for k, v := range s.stats {
		out[k] = v
	}
	return out, append([]schema.Committed(nil), s.committed...)
}

// estimate returns the approximate number of tokens of a request of this size,
// from the trainer's count for the last one, or four bytes per token before the
// first count. Only the trainer has the tokenizer, and there is no model call
// that asks for a count.
func (s *Session) estimate(size int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(float64(size)/cmp.Or(s.bytesPerToken, 4)) + 1
}

// Edits names the parameters of the agent's calls that an upstream refused and
// that were left out.
func (s *Session) Edits() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.edits))
}

// Suspend notes that the agent's processes are stopped, or run again.
func (s *Session) Suspend(suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.suspended = suspended
	s.clock.change(0, 0)
}

// Paused returns the time that does not count as the agent's: while it was suspended,
// and while all its open calls waited. A call waits if its trainer or upstream is absent
// or holds it.
func (s *Session) Paused() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.total()
}

// ServeHTTP implements http.Handler.
func (s *Session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "//") { // the agent's base URL ends in a slash
		r2 := *r
		u := *r.URL
		u.Path = path.Clean(u.Path)
		r2.URL = &u
		r = &r2
	}
	if serve := s.routes.find(r); serve != nil {
		serve(w, r)
	} else {
		refuse(w, s.cfg.Dialects[0], dialect.Refusal{Status: http.StatusNotFound, Code: "not_found", Message: fmt.Sprintf("%s %s is not served here", r.Method, r.URL.Path)})
	}
}

// admit checks that the key is right and that the session lives. The time of
// the comparison depends on the key's length only.
func (s *Session) admit(w http.ResponseWriter, r *http.Request, d dialect.Dialect) bool {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	for _, h := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if key == "" {
			key = r.Header.Get(h)
		}
	}
	if subtle.ConstantTimeCompare([]byte(key), []byte(s.key)) != 1 {
		refuse(w, d, dialect.Refusal{Status: http.StatusUnauthorized, Code: "invalid_api_key", Message: "The API key is not valid."})
		return false
	}
	if s.life.Err() != nil {
		refuse(w, d, dialect.Refusal{Status: http.StatusServiceUnavailable, Code: "ended", Message: "This session has ended."})
		return false
	}
	return true
}

// end ends the session with a fault.
func (s *Session) end(f *schema.Fault) { s.stop(f) }

// over refuses a call above a cap. It ends the session a little later, so that
// the agent can finish by itself.
func (s *Session) over(f *schema.Fault) dialect.Refusal {
	s.mu.Lock()
	first := s.limit == nil
	if first {
		s.limit = f
	}
	s.mu.Unlock()
	if first {
		t := time.AfterFunc(s.cfg.Timing.Cap, func() { s.end(f) })
		context.AfterFunc(s.life, func() { t.Stop() })
	}
	return dialect.Refusal{Status: http.StatusForbidden, Code: f.Code, Message: "No more model calls are allowed. Finish now."}
}

type noObserver struct{}

func (noObserver) CallBegan(int, *schema.Call)  {}
func (noObserver) CallDelta(int, *schema.Delta) {}
func (noObserver) CallWaits(schema.WaitEvent)   {}
func (noObserver) CallEnded(int, CallEnd)       {}
func (noObserver) ToolEnded(ToolEnd)            {}

// clock adds up the time during which there are open calls and all of them are
// idle, or the agent is suspended. The session's lock guards it.
type clock struct {
	open, idle int
	suspended  bool
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
	if c.suspended || c.open > 0 && c.open == c.idle {
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

func refuse(w http.ResponseWriter, d dialect.Dialect, f dialect.Refusal) {
	if f.Status == http.StatusTooManyRequests || f.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	write(w, f.Status, d.Fail(f))
}
