// Package console serves pages about rollouts to the browsers of one host.
package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/vocabulary"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// DefaultListen is a free port of the loopback address.
const DefaultListen = "127.0.0.1:0"

// maxReads is the number of transcripts that are read at once.
const maxReads = 2

// Config describes a console.
type Config struct {
	Source Source
	System *operate.System // that the rollouts are of; nil: none runs
	// ReadOnly refuses every write. Without it the server decides by the credential.
	ReadOnly bool
	Listen   string // host:port of this host's loopback address; default DefaultListen
	Version  string // of turngate, for people
	Play     *Play  // nil: the pages run no rollouts
	// Tokenizer has the texts of tokens; nil: pages show their ids.
	Tokenizer *vocabulary.Vocabulary
	// Link gets the URL that opens the console. It works once; after its use Link gets
	// the next one.
	Link func(url string)
	HTTP *telemetry.HTTP // nil: requests are not counted
	Log  zerolog.Logger
}

// Server is a console.
type Server struct {
	config  Config
	name    string // of the source
	process string // tells the feeds of this process apart from other feeds
	table   *table
	jobs    *jobPages
	// operator reads and acts on the running system; nil: there is none.
	operator *operator
	reads    chan struct{} // has a value for each transcript that is being read
	feeds    chan struct{} // has a value for each open feed
	viewed   chan struct{} // is closed when a browser first asks for rollouts
	once     sync.Once
	watches  watches
	player   *player // nil: it runs no rollouts
}

// CheckListen returns an error unless an address is a port of the loopback address.
func CheckListen(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not host:port, such as %s", address, DefaultListen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q is not a loopback address, such as %s: the console has no TLS; from another host, use a tunnel of ssh", address, DefaultListen)
	}
	return nil
}

// New returns a console.
func New(c Config) (*Server, error) {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	if err := CheckListen(c.Listen); err != nil {
		return nil, err
	}
	s := &Server{config: c, name: plain.Line(c.Source.Name(), maxFault), process: rand.Text(), table: newTable(), jobs: newJobPages(c.Source.Runs()), reads: make(chan struct{}, maxReads), feeds: make(chan struct{}, maxFeeds), viewed: make(chan struct{}), watches: watches{open: map[schema.ID]*watch{}}}
	if c.System != nil {
		s.operator = newOperator(c.System)
	}
	if c.Play != nil && !c.ReadOnly {
		s.player = newPlayer(c.Play, c.Log)
	}
	return s, nil
}

// Run serves until the context ends. It reads no rollouts before a browser asks for
// them.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.config.Listen)
	if err != nil {
		return fmt.Errorf("serve the console: %w", err)
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String()) // an address of TCP has a port
	door := newAccess(host, port, s.config.Log)
	link := func() { s.config.Link("http://" + listener.Addr().String() + "/?token=" + door.link()) }
	mux := s.routes(ctx)
	srv := &http.Server{
		Handler:           s.config.HTTP.Serve(mux, door.guard(orNoPage(mux), link)),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    32 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.follow(ctx) })
	running.Go(func() {
		<-ctx.Done()
		_ = srv.Close() // the listener is closed by it, too
	})
	link()
	err = srv.Serve(listener)
	cancel()
	s.watches.close()
	if s.player != nil {
		s.player.close()
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the console: %w", err)
}

func (s *Server) routes(ctx context.Context) *http.ServeMux {
	mux := http.NewServeMux()
	page := file("index.html", "text/html; charset=utf-8")
	mux.HandleFunc("GET /{$}", page)
	mux.HandleFunc("GET /rollout/{id}", page)
	for _, at := range []string{"/group", "/jobs", "/job", "/compare", "/new"} {
		mux.HandleFunc("GET "+at, page)
	}
	mux.HandleFunc("GET /app.js", file("app.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /app.css", file("app.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /icon.svg", file("icon.svg", "image/svg+xml"))
	mux.HandleFunc("GET /api/rollouts", s.rollouts)
	mux.HandleFunc("GET /api/rollouts/{id}", s.detail)
	mux.HandleFunc("GET /api/rollouts/{id}/live", func(w http.ResponseWriter, r *http.Request) { s.live(ctx, w, r) })
	mux.HandleFunc("GET /api/rollouts/{id}/rows/{row}", s.tokens)
	mux.HandleFunc("GET /api/rollouts/{id}/versions", s.versions)
	mux.HandleFunc("GET /api/group", s.group)
	s.jobs.routes(mux)
	mux.HandleFunc("GET /api/rollouts/{id}/files/{name...}", s.download)
	s.operatorRoutes(mux, page)
	mux.HandleFunc("GET /api/new", withPlayer(ctx, s, s.choices, nil))
	mux.HandleFunc("POST /api/new", withPlayer(ctx, s, s.submit, s.played("run")))
	mux.HandleFunc("POST /api/rollouts/{id}/calls/{call}/answer", withPlayer(ctx, s, s.reply, s.played("answer")))
	return mux
}

// orNoPage answers requests for pages that there are not with a page that says so.
func orNoPage(mux *http.ServeMux) http.Handler {
	page := file("index.html", "text/html; charset=utf-8")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if pattern != "" || r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, "/api/") {
			mux.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		page(w, r)
	})
}

// writeJSON answers with a value. A browser that is gone does not get it.
func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// watched begins to read rollouts.
func (s *Server) watched() { s.once.Do(func() { close(s.viewed) }) }

func (s *Server) follow(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.viewed:
	}
	s.config.Source.Follow(ctx, func(r *recorded.Rollout) { s.table.set(rowOf(r)) }, func(err error) {
		if err != nil {
			s.config.Log.Debug().Err(err).Msg("the console cannot read rollouts")
		}
		s.table.setTrouble(err)
	})
}
