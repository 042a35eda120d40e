// Package front serves HTTP and JSON to trainers that have no client of NATS. It keeps no
// state: several fronts behind a balancer are as one.
package front

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/netutil"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/jobs/recorded"
)

// Bounds of a front.
const (
	maxConnections = 1024
	readWithin     = time.Minute      // of a request's header and body, except a bundle's
	answerWithin   = 2 * time.Minute  // of a request that is no stream
	endWithin      = 10 * time.Second // of open requests when the front ends
)

// Config describes a front.
type Config struct {
	URL    string // of NATS
	Tokens *Tokens
	// Events is a connection of an operator or the admin, which may read the events of
	// rollouts: a trainer may not. Nil: the front shows none.
	Events *broker.Broker
	Listen string          // host:port; port 0 is a free one
	TLS    *tls.Config     // nil: none
	HTTP   *telemetry.HTTP // nil: requests are not counted
	Log    zerolog.Logger
}

// Server is a front.
type Server struct {
	config   Config
	listener net.Listener
	tenants  map[string]*tenant
	events   *recorded.System // nil: none
	peers    *peers
	ending   chan struct{} // is closed when streams have to end
}

// Listen takes the address. Call Run to serve it.
func Listen(ctx context.Context, c Config) (*Server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for trainers: %w", err)
	}
	l = netutil.LimitListener(l, maxConnections)
	if c.TLS != nil {
		l = tls.NewListener(l, c.TLS)
	}
	s := &Server{config: c, listener: l, tenants: map[string]*tenant{}, peers: &peers{of: map[net.Conn]*peer{}}, ending: make(chan struct{})}
	for name, creds := range c.Tokens.trainers {
		s.tenants[name] = newTenant(name, creds, c.URL, c.Log)
	}
	if c.Events != nil {
		s.events = recorded.On(c.Events)
	}
	for _, t := range s.tenants {
		t.tools = s.newTools(t)
	}
	return s, nil
}

// Address is the address on which the front listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until the context ends. When it returns, all requests have ended.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       readWithin,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          log.New(panics{s.config.Log}, "", 0),
		ConnContext:       s.peers.connect,
		ConnState:         s.peers.change,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	close(s.ending)
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if serr := srv.Shutdown(op); serr != nil {
		_ = srv.Close()
	}
	for _, t := range s.tenants {
		t.await(op) // WebSockets, for which Shutdown does not wait
		t.close()
	}
	if err == nil {
		err = <-served
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve trainers: %w", err)
}

// panics writes the panics of handlers to the log, and nothing of foreign connections.
type panics struct{ log zerolog.Logger }

func (p panics) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("http: panic")) {
		p.log.Error().Bytes("panic", line).Msg("a request ended by a panic")
	}
	return len(line), nil
}

// errEnding ends the streams of a front that ends.
var errEnding = errors.New("the front ends")

// handler answers a request of a trainer. An error is answered as a problem, unless the
// answer has begun.
type handler func(w http.ResponseWriter, r *http.Request, t *tenant) error

// route is one operation of the front.
type route struct {
	method, path string
	do           handler
	stream       bool // it may last
}

// routes lists the operations for which a token is needed. The file of OpenAPI describes
// each.
func (s *Server) routes() []route {
	return []route{
		{http.MethodPost, "/v1/rollouts", s.submit, false},
		{http.MethodPost, "/v1/groups", s.submitGroup, false},
		{http.MethodGet, "/v1/rollouts", s.list, false},
		{http.MethodGet, "/v1/rollouts/{id}", s.get, false},
		{http.MethodGet, "/v1/rollouts/{id}/events", s.watch, true},
		{http.MethodGet, "/v1/rollouts/{id}/files/{name...}", s.file, true},
		{http.MethodPost, "/v1/rollouts/{id}/retry", s.retry, false},
		{http.MethodPost, "/v1/cancel", s.cancel, false},
		{http.MethodGet, "/v1/results", s.results, true},
		{http.MethodPost, "/v1/bundles", s.putBundle, false},
		{http.MethodGet, "/v1/workers", s.workers, false},
		{http.MethodGet, "/v1/calls", s.calls, true},
		{http.MethodPost, "/mcp", s.mcp, false},
	}
}

// Handler returns the handler of all requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.Handle(r.method+" "+r.path, s.admitted(r))
	}
	mux.HandleFunc("GET /openapi.json", describe)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Ready(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		say(w, http.StatusOK, "ready")
	})
	return s.config.HTTP.Serve(mux, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Connection", "close") // unless a trainer has it: strangers could keep all connections
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		mux.ServeHTTP(&refused{ResponseWriter: w}, r)
	}))
}

// admitted lets requests with a valid token through to an operation.
func (s *Server) admitted(to route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		t := s.tenants[s.config.Tokens.holder(token)]
		if !ok || t == nil {
			problemf(http.StatusUnauthorized, codeToken, "want the header Authorization: Bearer TOKEN with a token of this front").write(w)
			return
		}
		answer := &answer{ResponseWriter: w}
		err := r.Context().Value(peerKey{}).(*peer).count(t)
		if err == nil {
			w.Header().Del("Connection")
			err = s.serve(answer, r, t, to)
		}
		if r.Method == http.MethodPost {
			s.config.Log.Info().Str("trainer", t.name).Str("path", plain.Line(r.URL.Path, 200)).Bool("refused", err != nil).Msg("a write of a trainer")
		}
		if err == nil || r.Context().Err() != nil {
			return
		}
		p, inside := problemOf(err)
		if inside || p.Status == http.StatusServiceUnavailable {
			s.config.Log.Warn().Err(err).Str("trainer", t.name).Str("path", plain.Line(r.URL.Path, 200)).Msg("a request of a trainer failed")
		}
		if answer.begun {
			panic(http.ErrAbortHandler) // the client sees that the answer is cut off
		}
		p.write(w)
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, t *tenant, to route) error {
	// The connection still has the deadline of its last answer. A stream sets others.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	if !to.stream {
		done, err := t.turn(r.Context())
		if err != nil {
			return err
		}
		defer done()
		return to.do(w, r.WithContext(trace.ContextWithRemoteSpanContext(r.Context(), traces.OfHTTP(r.Header))), t) // for a submit
	}
	done, err := t.stream()
	if err != nil {
		return err
	}
	defer done()
	defer s.config.HTTP.StreamBegan(r)()
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil { // its end would end the context
		return err
	}
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	go func() {
		select {
		case <-s.ending:
			end(errEnding)
		case <-ctx.Done():
		}
	}()
	return to.do(w, r.WithContext(ctx), t)
}

// answer notes whether the answer has begun.
type answer struct {
	http.ResponseWriter
	begun bool
}

func (a *answer) WriteHeader(status int) {
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	return a.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// refused writes the mux's own errors, which are plain text, as problems.
type refused struct {
	http.ResponseWriter
	instead bool // the body is replaced
}

func (f *refused) WriteHeader(status int) {
	h := f.Header()
	if (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) && strings.HasPrefix(h.Get("Content-Type"), "text/plain") {
		f.instead = true
		p := problemf(status, codeNotFound, "there is no such path: /openapi.json lists all")
		if status == http.StatusMethodNotAllowed {
			p = problemf(status, codeMethod, "this path has the methods "+h.Get("Allow"))
		}
		p.write(f.ResponseWriter)
		return
	}
	f.ResponseWriter.WriteHeader(status)
}

func (f *refused) Write(p []byte) (int, error) {
	if f.instead {
		return len(p), nil
	}
	return f.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (f *refused) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// Ready returns an error if a connection to NATS was made and is lost.
func (s *Server) Ready() error {
	lost := s.config.Events != nil && !s.config.Events.Connected()
	for _, t := range s.tenants {
		lost = lost || t.lost()
	}
	if lost {
		return errors.New("a connection to NATS is lost")
	}
	return nil
}
