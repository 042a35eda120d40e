// Package primetest is a server with the part of Prime Intellect's sandbox API that
// turngate uses. Its sandboxes are processes of this host, each with a home of its own. It
// isolates nothing and is for tests alone. A test checks that Prime's own client works with
// it.
package primetest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/prime/session/sessionconnect"
)

// Image is the only image of which the server makes sandboxes.
const Image = "debian:bookworm"

// namespace is that of the account in the paths of the gateway.
const namespace = "tests"

// Server is a running server. Its control plane and its gateway have the same URL.
type Server struct {
	URL string
	Key string // of the only account

	homes string
	mu    sync.Mutex
	all   map[string]*sandbox
	keys  map[string]string // the ids of sandboxes by the keys of their requests
	made  []time.Time       // of each sandbox
	no    refusal
	slow  int // answers with another status before a sandbox runs
	open  int // answers before a policy of the network has an effect
	late  int // requests to the gateway that do not find the sandbox
	lose  int // answers to inputs that get lost
	busy  int // requests for a token that are refused for now
	blind int // number of lost answers, to requests to make a sandbox and then for the list
}

// refusal is an answer for the next requests to make a sandbox.
type refusal struct {
	times, status int
	after         string
}

// sandbox is a sandbox with its processes.
type sandbox struct {
	*hostedtest.Place
	id    string
	asked newSandbox
	made  time.Time
	cut   chan struct{} // closed to break the streams; replaced by Cut

	mu       sync.Mutex
	tokens   []string // that the gateway takes
	status   string
	slow     int
	policy   map[string][]string // of the network; nil: open
	open     int
	sessions map[string]*command
	inputs   map[string]bool // that have arrived
}

// Start starts a server, which stops with its sandboxes when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{Key: "prime_" + strings.ToLower(rand.Text()), homes: t.TempDir(), all: map[string]*sandbox{}, keys: map[string]string{}}
	mux := http.NewServeMux()
	account := func(method, path string, h http.HandlerFunc) {
		mux.HandleFunc(method+" /api/v1/sandbox"+path, s.account(h))
	}
	named := func(method, path string, h func(http.ResponseWriter, *http.Request, *sandbox)) {
		account(method, "/{id}"+path, func(w http.ResponseWriter, r *http.Request) {
			sb, _ := s.find(r.PathValue("id"))
			if sb == nil {
				fail(w, http.StatusNotFound, "Sandbox not found")
				return
			}
			h(w, r, sb)
		})
	}
	account("POST", "", s.create)
	account("GET", "", s.list)
	account("DELETE", "", s.removeAll)
	account("POST", "/status:batchGet", s.statuses)
	named("GET", "", func(w http.ResponseWriter, _ *http.Request, sb *sandbox) { reply(w, http.StatusOK, sb.answer()) })
	named("DELETE", "", func(w http.ResponseWriter, _ *http.Request, sb *sandbox) {
		s.End(sb.id, "")
		reply(w, http.StatusOK, map[string]any{"message": "deleted"})
	})
	named("GET", "/error-context", func(w http.ResponseWriter, _ *http.Request, sb *sandbox) {
		reply(w, http.StatusOK, map[string]any{"status": sb.answer()["status"]})
	})
	named("POST", "/auth", func(w http.ResponseWriter, _ *http.Request, sb *sandbox) {
		if s.take(&s.busy) {
			fail(w, http.StatusServiceUnavailable, "no token for now")
			return
		}
		reply(w, http.StatusOK, s.auth(sb))
	})
	named("PUT", "/egress-policy", s.setPolicy)
	named("GET", "/egress-policy", func(w http.ResponseWriter, _ *http.Request, sb *sandbox) { reply(w, http.StatusOK, sb.showPolicy()) })
	mux.HandleFunc("POST /{namespace}/{id}/upload", s.gateway(s.upload))
	mux.HandleFunc("GET /{namespace}/{id}/download", s.gateway(s.download))
	mux.HandleFunc("GET /{namespace}/{id}/read-file", s.gateway(s.readFile))
	_, handler := sessionconnect.NewCommandSessionHandler(sessions{s})
	mux.HandleFunc("POST /{namespace}/{id}/"+sessionconnect.CommandSessionName+"/{method}", s.rpc(handler))
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	s.URL = "http://" + srv.Listener.Addr().String() // handlers read it
	srv.Start()
	t.Cleanup(func() {
		for _, i := range s.Sandboxes() {
			s.End(i.ID, "")
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	return s
}

// Env returns the environment of clients of this server.
func (s *Server) Env() []string {
	return []string{"PRIME_API_KEY=" + s.Key, "PRIME_API_BASE_URL=" + s.URL, "NO_PROXY=127.0.0.1"}
}

// Info describes a sandbox.
type Info struct {
	ID          string
	Labels      []string
	Life, Idle  int // in minutes
	Closed      bool
	Pids        []int // of the processes that live
	description map[string]any
}

// Sandboxes lists the sandboxes that have not ended.
func (s *Server) Sandboxes() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Info
	for _, sb := range s.all {
		if i := sb.info(); i.description["terminatedAt"] == nil {
			list = append(list, i)
		}
	}
	return list
}

func (sb *sandbox) info() Info {
	i := Info{ID: sb.id, Labels: sb.asked.Labels, Life: sb.asked.Life, Pids: sb.Pids(), description: sb.answer()}
	if sb.asked.Idle != nil {
		i.Idle = *sb.asked.Idle
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	i.Closed = sb.policy != nil && sb.policy["denylist"] == nil && len(sb.policy["allowlist"]) == 0 && sb.open <= 0
	return i
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

// Delay lets the next sandbox run, and the policy of its network have an effect, after so
// many answers, and the gateway find it after so many requests.
func (s *Server) Delay(run, policy, gateway int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow, s.open, s.late = run, policy, gateway
}

// LoseInputs answers the next inputs of processes as unavailable, although they have
// arrived.
func (s *Server) LoseInputs(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = n
}

// LoseMade answers the next request to make a sandbox with 502, although it is made, and
// the next one for the list, too.
func (s *Server) LoseMade() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = 2
}

// RefuseTokens answers the next requests for a token with 503.
func (s *Server) RefuseTokens(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = n
}

// Expire lets the gateway refuse the tokens of a sandbox that it has given out.
func (s *Server) Expire(id string) {
	if sb, _ := s.find(id); sb != nil {
		sb.mu.Lock()
		sb.tokens = nil
		sb.mu.Unlock()
	}
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

// End ends a sandbox with all its processes. A reason keeps it in the list, as a sandbox
// that Prime has ended.
func (s *Server) End(id, reason string) {
	s.mu.Lock()
	sb := s.all[id]
	if sb != nil {
		close(sb.cut)
		sb.cut = make(chan struct{})
		sb.mu.Lock()
		sb.status = reason
		sb.mu.Unlock()
	}
	if sb != nil && reason == "" {
		delete(s.all, id)
	}
	s.mu.Unlock()
	if sb != nil {
		sb.End()
	}
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

// take takes one of n.
func (s *Server) take(n *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *n <= 0 {
		return false
	}
	*n--
	return true
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func fail(w http.ResponseWriter, status int, detail string) {
	reply(w, status, map[string]any{"detail": detail})
}

// account lets only requests with the key pass.
func (s *Server) account(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+s.Key {
			fail(w, http.StatusUnauthorized, "Invalid API key")
			return
		}
		h(w, r)
	}
}

type newSandbox struct {
	Name   string   `json:"name"`
	Image  string   `json:"docker_image"`
	CPUs   float64  `json:"cpu_cores"`
	Memory float64  `json:"memory_gb"`
	Disk   float64  `json:"disk_size_gb"`
	VM     bool     `json:"vm"`
	Life   int      `json:"timeout_minutes"`
	Idle   *int     `json:"idle_timeout_minutes"`
	Labels []string `json:"labels"`
	Team   *string  `json:"team_id"`
	Key    string   `json:"idempotency_key"`
}

// check returns the error of the service for a request.
func (n *newSandbox) check() (int, string) {
	switch {
	case n.Name == "" || len(n.Name) > 100:
		return http.StatusUnprocessableEntity, "name must have 1 to 100 characters"
	case !n.VM:
		return http.StatusUnprocessableEntity, "the test server makes sandboxes with vm only"
	case n.Life == 0 || n.Life > 24*60:
		return http.StatusUnprocessableEntity, "timeout_minutes must be negative for infinite or from 1 to 1440"
	case n.Idle != nil && (*n.Idle < 1 || n.Life > 0 && *n.Idle > n.Life):
		return http.StatusUnprocessableEntity, "idle_timeout_minutes must be >= 1 and <= timeout_minutes"
	case n.CPUs < 0.1 || n.CPUs > 16 || n.Memory < 0.1 || n.Memory > 64 || n.Disk < 0.1 || n.Disk > 1000:
		return http.StatusUnprocessableEntity, "the size is out of range"
	case n.Image != Image:
		return http.StatusBadRequest, fmt.Sprintf("image '%s' not found", n.Image)
	}
	return 0, ""
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var n newSandbox
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		fail(w, http.StatusUnprocessableEntity, err.Error())
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
	if status, detail := n.check(); status != 0 {
		fail(w, status, detail)
		return
	}
	sb, err := s.make(n)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	if s.take(&s.blind) {
		fail(w, http.StatusBadGateway, "lost for a test")
		return
	}
	reply(w, http.StatusOK, sb.answer())
}

// Make makes a sandbox, as a client that is gone may have done.
func (s *Server) Make(labels ...string) error {
	_, err := s.make(newSandbox{Name: "made", Image: Image, Life: 60, Labels: labels})
	return err
}

func (s *Server) make(n newSandbox) (*sandbox, error) {
	id := "sbx" + strings.ToLower(rand.Text())[:20]
	place, err := hostedtest.NewPlace(filepath.Join(s.homes, id))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.all[s.keys[n.Key]]; old != nil && n.Key != "" {
		return old, nil
	}
	s.keys[n.Key] = id
	sb := &sandbox{Place: place, id: id, asked: n, made: time.Now(), cut: make(chan struct{}), slow: s.slow, open: s.open, sessions: map[string]*command{}, inputs: map[string]bool{}}
	s.slow, s.open = 0, 0
	s.all[id] = sb
	s.made = append(s.made, sb.made)
	return sb, nil
}

// answer returns the description of a sandbox.
func (sb *sandbox) answer() map[string]any {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	a := map[string]any{
		"id": sb.id, "name": sb.asked.Name, "dockerImage": sb.asked.Image, "cpuCores": sb.asked.CPUs, "memoryGB": sb.asked.Memory, "diskSizeGB": sb.asked.Disk,
		"diskMountPath": "/", "gpuCount": 0, "vm": true, "status": "RUNNING", "timeoutMinutes": sb.asked.Life, "idleTimeoutMinutes": sb.asked.Idle,
		"labels": sb.asked.Labels, "createdAt": sb.made, "updatedAt": sb.made, "teamId": sb.asked.Team,
	}
	switch {
	case sb.status != "":
		a["status"], a["terminatedAt"], a["errorMessage"] = "TERMINATED", time.Now(), sb.status
	case sb.slow > 0:
		a["status"] = "PROVISIONING"
		if sb.slow--; sb.slow > 0 {
			a["status"], a["pendingImageBuildId"] = "PENDING", "build-1"
		}
	}
	return a
}

// list lists the sandboxes that have all the labels, oldest first.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	if s.take(&s.blind) {
		fail(w, http.StatusBadGateway, "lost for a test")
		return
	}
	q := r.URL.Query()
	var found []*sandbox
	s.mu.Lock()
	for _, sb := range s.all {
		fits := q.Get("is_active") != "true" || sb.status == ""
		for _, label := range q["labels"] {
			fits = fits && slices.Contains(sb.asked.Labels, label)
		}
		if fits {
			found = append(found, sb)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(found, func(a, b *sandbox) int { return a.made.Compare(b.made) })
	page, size := 1, 50
	if n, err := strconv.Atoi(q.Get("page")); err == nil && n > 0 {
		page = n
	}
	if n, err := strconv.Atoi(q.Get("per_page")); err == nil && n > 0 {
		size = n
	}
	out := []map[string]any{}
	for _, sb := range found[min((page-1)*size, len(found)):min(page*size, len(found))] {
		out = append(out, sb.answer())
	}
	reply(w, http.StatusOK, map[string]any{"sandboxes": out, "total": len(found), "page": page, "perPage": size, "hasNext": page*size < len(found)})
}

// statuses answers with the status of each sandbox of a list.
func (s *Server) statuses(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		IDs []string `json:"sandbox_ids"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		fail(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	found, problems := []map[string]any{}, []map[string]any{}
	for _, id := range asked.IDs {
		if sb, _ := s.find(id); sb != nil {
			found = append(found, map[string]any{"sandbox_id": id, "status": sb.answer()["status"]})
		} else {
			problems = append(problems, map[string]any{"sandbox_id": id, "code": "NOT_FOUND", "message": "Sandbox not found"})
		}
	}
	reply(w, http.StatusOK, map[string]any{"statuses": found, "errors": problems})
}

// removeAll removes the sandboxes of a list.
func (s *Server) removeAll(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		IDs    []string `json:"sandbox_ids"`
		Labels []string `json:"labels"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		fail(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	done := []string{}
	for _, i := range s.Sandboxes() {
		if slices.Contains(asked.IDs, i.ID) || slices.ContainsFunc(asked.Labels, func(l string) bool { return slices.Contains(i.Labels, l) }) {
			s.End(i.ID, "")
			done = append(done, i.ID)
		}
	}
	reply(w, http.StatusOK, map[string]any{"succeeded": done, "failed": []any{}, "message": "done"})
}

// setPolicy sets the policy of the network: one list of two is null.
func (s *Server) setPolicy(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var policy map[string][]string
	if err := json.NewDecoder(r.Body).Decode(&policy); err != nil || (policy["allowlist"] == nil) == (policy["denylist"] == nil) {
		fail(w, http.StatusUnprocessableEntity, "exactly one of allowlist and denylist must be a list")
		return
	}
	sb.mu.Lock()
	sb.policy = policy
	sb.mu.Unlock()
	reply(w, http.StatusOK, sb.showPolicy())
}

func (sb *sandbox) showPolicy() map[string]any {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	policy := sb.policy
	if policy == nil {
		policy = map[string][]string{"allowlist": nil, "denylist": {}}
	}
	applied := sb.open <= 0
	sb.open--
	generation := map[bool]int{false: 1, true: 2}
	return map[string]any{"policy": policy, "generation": 2, "applied_generation": generation[applied], "applied": applied}
}
