// Package e2btest is a server with the part of E2B's API that turngate uses. Its sandboxes
// are processes of this host, each with a home of its own. It isolates nothing: it is for
// tests alone. The official clients of E2B work with it, which a test checks.
package e2btest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/internal/backends/e2b/envd/envdconnect"
	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
)

// Template is the name of the only template.
const Template = "base"

// envdVersion is the version that the sandboxes tell their clients.
const envdVersion = "0.5.7"

// Server is a running server. Its control plane and its sandboxes have the same URL.
type Server struct {
	URL string
	Key string // of the only account

	homes string
	mu    sync.Mutex
	all   map[string]*sandbox
	made  []time.Time // of each sandbox
	no    refusal
	short int // renewals that are refused; see RefuseRenewals
}

// refusal is an answer for the next requests to make a sandbox.
type refusal struct {
	times, status int
	after         string
}

// sandbox is a sandbox with its processes.
type sandbox struct {
	*hostedtest.Place
	id, token string
	metadata  map[string]string
	started   time.Time
	cut       chan struct{} // closed to break the streams; replaced by Cut

	mu    sync.Mutex
	ends  time.Time
	timer *time.Timer
	procs []*process
}

// Start starts a server, which stops with its sandboxes when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{Key: "e2b_" + strings.ToLower(rand.Text()), homes: t.TempDir(), all: map[string]*sandbox{}}
	mux := http.NewServeMux()
	account := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, s.account(h)) }
	for _, version := range []string{"", "/v2"} {
		account("POST "+version+"/sandboxes", s.create)
		account("GET "+version+"/sandboxes", s.list)
		account("POST "+version+"/sandboxes/{id}/connect", s.connect)
	}
	account("GET /sandboxes/{id}", s.show)
	account("DELETE /sandboxes/{id}", s.remove)
	account("POST /sandboxes/{id}/timeout", s.timeout)
	account("POST /sandboxes/{id}/refreshes", s.timeout)
	account("/sandboxes/{id}/{operation}", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotImplemented, "the test server lacks the operation "+r.PathValue("operation"))
	})
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, h := range []func() (string, http.Handler){
		func() (string, http.Handler) { return envdconnect.NewProcessHandler(processes{s}) },
		func() (string, http.Handler) { return envdconnect.NewFilesystemHandler(filesystem{s}) },
	} {
		path, handler := h()
		mux.Handle(path, s.tokened(handler))
	}
	mux.HandleFunc("/files", s.files)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	s.URL = srv.URL
	t.Cleanup(func() {
		for _, i := range s.Sandboxes() {
			s.End(i.ID)
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	return s
}

// Env returns the environment of clients of this server.
func (s *Server) Env() []string {
	return []string{"E2B_API_KEY=" + s.Key, "E2B_API_URL=" + s.URL, "E2B_SANDBOX_URL=" + s.URL, "NO_PROXY=127.0.0.1"}
}

// Info describes a sandbox.
type Info struct {
	ID       string
	Metadata map[string]string
	Home     string // of its users, a folder of this host
	Ends     time.Time
	Pids     []int // of the processes that envd has started and that live
}

// Sandboxes lists the sandboxes.
func (s *Server) Sandboxes() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Info
	for _, sb := range s.all {
		sb.mu.Lock()
		i := Info{ID: sb.id, Metadata: sb.metadata, Home: sb.Home, Ends: sb.ends, Pids: sb.Pids()}
		sb.mu.Unlock()
		list = append(list, i)
	}
	return list
}

// Made returns the times at which sandboxes were made.
func (s *Server) Made() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.made)
}

// Refuse answers the next requests to make a sandbox with a status and a value of
// Retry-After, which may be empty.
func (s *Server) Refuse(times, status int, after string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.no = refusal{times, status, after}
}

// Cut breaks all streams of a sandbox, as a lost connection does. Its processes go on.
func (s *Server) Cut(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.all[id]; sb != nil {
		close(sb.cut)
		sb.cut = make(chan struct{})
	}
}

// End ends a sandbox with all its processes, as its timeout does.
func (s *Server) End(id string) bool {
	s.mu.Lock()
	sb := s.all[id]
	if sb != nil {
		delete(s.all, id)
		close(sb.cut)
	}
	s.mu.Unlock()
	if sb == nil {
		return false
	}
	sb.mu.Lock()
	sb.timer.Stop()
	sb.mu.Unlock()
	sb.End()
	return true
}

// find returns the sandbox of this id; nil: there is none.
func (s *Server) find(id string) (sb *sandbox, cut chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb = s.all[id]; sb != nil {
		cut = sb.cut
	}
	return sb, cut
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, map[string]any{"code": status, "message": message})
}

// account lets only requests with the key pass.
func (s *Server) account(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != s.Key {
			fail(w, http.StatusUnauthorized, "the API key is not valid")
			return
		}
		h(w, r)
	}
}

// tokened lets only requests pass that name a sandbox and have its token.
func (s *Server) tokened(h http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sb, _ := s.find(r.Header.Get("E2b-Sandbox-Id"))
		switch {
		case sb == nil:
			fail(w, http.StatusBadGateway, "the sandbox was not found")
		case r.Header.Get("X-Access-Token") != sb.token:
			_ = refuse.Write(w, r, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the access token is not valid"))) // the client may be gone
		default:
			h.ServeHTTP(w, r)
		}
	})
}

type newSandbox struct {
	Template string            `json:"templateID"`
	Timeout  *int              `json:"timeout"`
	Metadata map[string]string `json:"metadata"`
}

// RefuseRenewals answers the next requests to make a sandbox's time longer with 429.
func (s *Server) RefuseRenewals(times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short = times
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var n newSandbox
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	no := s.no
	if s.no.times > 0 {
		s.no.times--
	}
	s.mu.Unlock()
	if no.times > 0 {
		if no.after != "" {
			w.Header().Set("Retry-After", no.after)
		}
		fail(w, no.status, "refused for a test")
		return
	}
	if n.Template != Template {
		fail(w, http.StatusNotFound, fmt.Sprintf("template '%s' not found", n.Template))
		return
	}
	timeout := 15
	if n.Timeout != nil {
		timeout = *n.Timeout
	}
	sb, err := s.make(n.Metadata, timeout)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, http.StatusCreated, sb.answer())
}

// Make makes a sandbox, as a client that is gone may have done.
func (s *Server) Make(metadata map[string]string) error {
	_, err := s.make(metadata, 300)
	return err
}

func (s *Server) make(metadata map[string]string, timeout int) (*sandbox, error) {
	id := "i" + strings.ToLower(rand.Text())[:19]
	place, err := hostedtest.NewPlace(filepath.Join(s.homes, id))
	if err != nil {
		return nil, err
	}
	sb := &sandbox{Place: place, id: id, token: rand.Text(), metadata: metadata, started: time.Now(), cut: make(chan struct{})}
	s.keep(sb, timeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[id] = sb
	s.made = append(s.made, sb.started)
	return sb, nil
}

// answer returns the control plane's description of a sandbox that it made.
func (sb *sandbox) answer() map[string]any {
	return map[string]any{"sandboxID": sb.id, "templateID": Template, "clientID": "test", "envdVersion": envdVersion, "envdAccessToken": sb.token, "domain": nil, "trafficAccessToken": nil}
}

// keep lets a sandbox end after some seconds from now.
func (s *Server) keep(sb *sandbox, seconds int) {
	d := time.Duration(seconds) * time.Second
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.ends = time.Now().Add(d)
	if sb.timer != nil {
		sb.timer.Stop()
	}
	sb.timer = time.AfterFunc(d, func() { s.End(sb.id) })
}

func (s *Server) detail(sb *sandbox) map[string]any {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	a := sb.answer()
	delete(a, "envdAccessToken")
	a["metadata"], a["startedAt"], a["endAt"], a["state"] = sb.metadata, sb.started, sb.ends, "running"
	a["cpuCount"], a["memoryMB"], a["diskSizeMB"] = 2, 1024, 10240
	return a
}

// list lists the sandboxes by their metadata, oldest first.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	want, err := url.ParseQuery(r.URL.Query().Get("metadata"))
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	var found []*sandbox
	s.mu.Lock()
	for _, sb := range s.all {
		fits := true
		for key, values := range want {
			name, kerr := url.QueryUnescape(key)
			value, verr := url.QueryUnescape(values[0])
			fits = fits && kerr == nil && verr == nil && sb.metadata[name] == value
		}
		if fits {
			found = append(found, sb)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(found, func(a, b *sandbox) int { return a.started.Compare(b.started) })
	page := found
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil {
		from, _ := strconv.Atoi(r.URL.Query().Get("nextToken")) // empty: the first page
		page = found[min(from, len(found)):min(from+limit, len(found))]
		if from+limit < len(found) {
			w.Header().Set("X-Next-Token", strconv.Itoa(from+limit))
		}
	}
	out := []map[string]any{}
	for _, sb := range page {
		out = append(out, s.detail(sb))
	}
	reply(w, http.StatusOK, out)
}

// named calls h with the sandbox of the path, or answers 404.
func (s *Server) named(w http.ResponseWriter, r *http.Request, h func(*sandbox)) {
	sb, _ := s.find(r.PathValue("id"))
	if sb == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("sandbox %q not found", r.PathValue("id")))
		return
	}
	h(sb)
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	s.named(w, r, func(sb *sandbox) { reply(w, http.StatusOK, s.detail(sb)) })
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	s.named(w, r, func(sb *sandbox) {
		s.End(sb.id)
		w.WriteHeader(http.StatusNoContent)
	})
}

// seconds reads the time of a request to keep a sandbox.
func seconds(r *http.Request) (int, error) {
	var body struct {
		Timeout  *int `json:"timeout"`
		Duration *int `json:"duration"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return 0, err
	}
	for _, n := range []*int{body.Timeout, body.Duration} {
		if n != nil && *n >= 0 {
			return *n, nil
		}
	}
	return 0, fmt.Errorf("timeout: it is missing or negative")
}

func (s *Server) timeout(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	refuse := s.short > 0
	s.short = max(s.short-1, 0)
	s.mu.Unlock()
	if refuse {
		fail(w, http.StatusTooManyRequests, "refused for a test")
		return
	}
	s.named(w, r, func(sb *sandbox) {
		n, err := seconds(r)
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		s.keep(sb, n)
		w.WriteHeader(http.StatusNoContent)
	})
}

// connect answers as create does, and only makes the sandbox's time longer. Clients of
// version 2 send no time.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	s.named(w, r, func(sb *sandbox) {
		n, err := seconds(r)
		if err != nil && !strings.HasPrefix(r.URL.Path, "/v2/") {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		sb.mu.Lock()
		longer := time.Now().Add(time.Duration(n) * time.Second).After(sb.ends)
		sb.mu.Unlock()
		if longer {
			s.keep(sb, n)
		}
		reply(w, http.StatusOK, sb.answer())
	})
}
