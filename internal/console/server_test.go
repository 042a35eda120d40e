package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a source of rollouts that a test sends.
type memory struct {
	rollouts chan *recorded.Rollout
	errs     chan error
	taken    chan struct{}     // gets a value when the console has the sent one
	one      *recorded.Rollout // the only one that is found
	closed   error             // the reason for which it has no files
}

func (m *memory) Name() string { return "a test" }

func (m *memory) Files() error { return m.closed }

func (m *memory) Runs() *console.Folder { return nil }

func (m *memory) Flags(string) string { return "--runs x" }

func (m *memory) Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-m.rollouts:
			show(r)
		case err := <-m.errs:
			trouble(err)
		}
		select {
		case <-ctx.Done():
		case m.taken <- struct{}{}:
		}
	}
}

// show returns when the console has a rollout.
func (m *memory) show(r *recorded.Rollout) { m.rollouts <- r; <-m.taken }

// trouble returns when the console has an error.
func (m *memory) trouble(err error) { m.errs <- err; <-m.taken }

func (m *memory) Rollout(context.Context, schema.ID) (*recorded.Rollout, error) {
	if m.one == nil {
		return nil, recorded.ErrNotFound
	}
	return m.one, nil
}

// site is a console under test.
type site struct {
	memory
	links chan string
	base  string
	stop  func()
}

func serve(t *testing.T) *site { return serveAt(t, console.DefaultListen) }

func serveAt(t *testing.T, address string) *site {
	t.Helper()
	s := &site{memory: memory{rollouts: make(chan *recorded.Rollout), errs: make(chan error), taken: make(chan struct{})}}
	s.start(t, &s.memory, address)
	return s
}

// start serves a source.
func (s *site) start(t *testing.T, source console.Source, address string) {
	t.Helper()
	s.run(t, console.Config{Source: source, Listen: address})
}

// run serves a configuration.
func (s *site) run(t *testing.T, c console.Config) {
	t.Helper()
	s.links = make(chan string, 10)
	c.Link = func(url string) { s.links <- url }
	srv, err := console.New(c)
	harness.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := srv.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	s.stop = func() { stop(); running.Wait() }
	t.Cleanup(s.stop)
}

// browser opens the console's next URL and keeps cookies.
func (s *site) browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	harness.Must(t, err)
	c := &http.Client{Jar: jar, Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	url := <-s.links
	s.base, _, _ = strings.Cut(url, "/?")
	if code, text := get(t, c, url, nil); code != http.StatusOK {
		t.Fatalf("got %d %s", code, text)
	}
	return c
}

func get(t *testing.T, c *http.Client, url string, change func(*http.Request)) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	harness.Must(t, err)
	if change != nil {
		change(q)
	}
	a, err := c.Do(q)
	harness.Must(t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	harness.Must(t, err)
	return a.StatusCode, string(text)
}

func TestABrowserNeedsALink(t *testing.T) {
	s := serve(t)
	link := <-s.links
	s.links <- link
	base, _, _ := strings.Cut(link, "/?")
	stranger := &http.Client{Transport: &http.Transport{}}
	defer stranger.CloseIdleConnections()
	for _, url := range []string{base, base + "/app.js", base + "/api/rollouts", base + "/?token=" + strings.Repeat("A", 26)} {
		if code, _ := get(t, stranger, url, nil); code != http.StatusUnauthorized {
			t.Errorf("%s: got %d", url, code)
		}
	}
	c := s.browser(t)
	if code, text := get(t, c, base, nil); code != http.StatusOK || !strings.Contains(text, "/app.js") {
		t.Errorf("got %d %s", code, text)
	}
	if code, _ := get(t, stranger, link, nil); code != http.StatusUnauthorized {
		t.Errorf("a URL worked twice: %d", code)
	}
	if next := <-s.links; next == link {
		t.Error("the next URL is the used one")
	}
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"a foreign host":          {func(q *http.Request) { q.Host = "evil.example:" + q.URL.Port() }, http.StatusForbidden},
		"another port":            {func(q *http.Request) { q.Host = "127.0.0.1:1" }, http.StatusForbidden},
		"a page of another port":  {func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusUnauthorized},
		"a page of another site":  {func(q *http.Request) { q.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusUnauthorized},
		"a write":                 {func(q *http.Request) { q.Method = http.MethodPost }, http.StatusForbidden},
		"another method":          {func(q *http.Request) { q.Method = http.MethodDelete }, http.StatusMethodNotAllowed},
		"a file beside the pages": {func(q *http.Request) { q.URL.Path = "/../server.go" }, http.StatusNotFound},
	} {
		if code, text := get(t, c, base+"/app.css", tt.change); code != tt.want {
			t.Errorf("%s: got %d %.100s", name, code, text)
		}
	}
}

// A console answers the URL that it prints, at any loopback address.
func TestAConsoleAnswersItsOwnURL(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is no address of this host")
	}
	s := serveAt(t, "127.0.0.2:0")
	c := s.browser(t)
	if !strings.HasPrefix(s.base, "http://127.0.0.2:") {
		t.Errorf("got %s", s.base)
	}
	if code, _ := get(t, c, s.base, func(q *http.Request) { q.Host = "127.0.0.3:" + q.URL.Port() }); code != http.StatusForbidden {
		t.Errorf("another address: got %d", code)
	}
}

func TestPagesLoadNothingElse(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	for _, path := range []string{"/", "/app.js", "/app.css", "/icon.svg", "/none"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, nil)
		harness.Must(t, err)
		a, err := c.Do(q)
		harness.Must(t, err)
		a.Body.Close()
		policy := a.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: got %v", path, a.Header)
		}
	}
	_, page := get(t, c, s.base, nil)
	if strings.Contains(page, "http:") || strings.Contains(page, "https:") || strings.Contains(page, "<style") || strings.Contains(page, "onload") {
		t.Errorf("got %s", page)
	}
}

// event is one of a feed.
type event struct{ name, id, data string }

// feed reads events of a path from a Last-Event-ID on, until the test or stop ends it.
func (s *site) feed(t *testing.T, c *http.Client, path, from string) (events <-chan event, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	harness.Must(t, err)
	if from != "" {
		q.Header.Set("Last-Event-ID", from)
	}
	a, err := c.Do(q)
	harness.Must(t, err)
	out := make(chan event, 1000)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer a.Body.Close()
		lines := bufio.NewReader(a.Body)
		var e event
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				if e.name != "beat" { // these come whenever nothing else does
					out <- e
				}
				e = event{}
			}
		}
	})
	return out, func() { cancel(); reading.Wait() }
}

func rows(t *testing.T, e event) []console.Row {
	t.Helper()
	var list []console.Row
	if err := json.Unmarshal([]byte(e.data), &list); err != nil || e.name != "rows" {
		t.Fatalf("got %+v, %v", e, err)
	}
	return list
}

func running(n int) *recorded.Rollout {
	id := schema.ID(fmt.Sprintf("alpha-%04d", n))
	return &recorded.Rollout{ID: id, State: &schema.State{ID: id, Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1}}
}

// A browser that lost the connection gets the changes since then, once and in order. One that
// was connected to another process gets everything.
func TestAFeedGoesOnWhereItWas(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	events, stop := s.feed(t, c, "/api/rollouts", "")
	if e := <-events; e.name != "begin" || !strings.Contains(e.data, "a test") {
		t.Fatalf("got %+v", e)
	}
	if e := <-events; e.name != "trouble" || e.data != `""` {
		t.Fatalf("got %+v", e)
	}
	const n = 1200
	for i := range n {
		s.show(running(i))
	}
	seen, last := 0, ""
	for seen < n {
		e := <-events
		seen, last = seen+len(rows(t, e)), e.id
	}
	stop()

	s.show(running(5))
	s.show(running(n))
	s.trouble(fmt.Errorf("no server"))
	events, stop = s.feed(t, c, "/api/rollouts", last)
	list := rows(t, <-events)
	if len(list) != 2 || list[0].ID != "alpha-0005" || list[1].ID != fmt.Sprintf("alpha-%04d", n) {
		t.Errorf("got %+v", list)
	}
	if e := <-events; e.name != "trouble" || e.data != `"no server"` {
		t.Errorf("got %+v", e)
	}
	s.trouble(nil)
	if e := <-events; e.name != "trouble" || e.data != `""` {
		t.Errorf("got %+v", e)
	}
	s.trouble(fmt.Errorf("no server"))
	bad := <-events
	stop()
	s.trouble(nil)
	events, stop = s.feed(t, c, "/api/rollouts", bad.id)
	if e := <-events; bad.data != `"no server"` || e.name != "trouble" || e.data != `""` {
		t.Errorf("after a trouble that ended meanwhile: %+v, %+v", bad, e)
	}
	stop()

	events, stop = s.feed(t, c, "/api/rollouts", "ANOTHERPROCESS.7")
	defer stop()
	if e := <-events; e.name != "begin" {
		t.Fatalf("got %+v", e)
	}
	for seen = 0; seen <= n; {
		seen += len(rows(t, <-events))
	}
}

// Texts of agents and tasks reach a page without characters that change a terminal's or
// a page's direction, and with a bounded length.
func TestTextsOfRowsAreBounded(t *testing.T) {
	s := serve(t)
	c := s.browser(t)
	events, stop := s.feed(t, c, "/api/rollouts", "")
	defer stop()
	<-events // begin
	<-events // trouble
	const text = "<img src=x onerror=alert(1)>\x1b[2J\u202e\u2028\r\n"
	long := text + strings.Repeat("x", 5<<20)
	r := running(1)
	r.Result = &schema.Result{ID: r.ID, Task: long, Agent: long, Group: long, Worker: long, Status: schema.StatusFailed, Fault: &schema.Fault{Code: long, Message: long}, Labels: map[string]string{long: long}}
	s.show(r)
	e := <-events
	if len(e.data) > 8192 || strings.ContainsAny(e.data, "\x1b\u202e\u2028<\r") || strings.Contains(e.data, `\u001b`) || strings.Contains(e.data, `\u2028`) {
		t.Errorf("got %d bytes: %.2000s", len(e.data), e.data)
	}
	if row := rows(t, e)[0]; !strings.HasPrefix(row.Task, "<img src=x onerror=alert(1)>") || len(row.Labels) != 1 {
		t.Errorf("got %+v", row)
	}
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "localhost:8080"} {
		if err := console.CheckListen(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"0.0.0.0:0", ":8080", "192.0.2.1:80", "127.0.0.1", "example.com:80", ""} {
		if console.CheckListen(address) == nil {
			t.Errorf("%q was accepted", address)
		}
	}
}
