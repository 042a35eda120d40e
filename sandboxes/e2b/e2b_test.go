package e2b_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/e2b"
	"github.com/turngate/turngate/sandboxes/e2b/e2btest"
	"github.com/turngate/turngate/sandboxes/far"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

// TestMain lets the test binary act as turngate in a sandbox, and as a worker.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "box":
		os.Exit(local.BoxMain(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == far.Command:
		os.Exit(far.Serve(os.Args[2:]))
	case len(os.Args) > 4 && os.Args[1] == "work":
		os.Exit(work(sandboxes.E2B{Template: e2btest.Template, Key: os.Getenv("E2B_API_KEY"), APIURL: os.Args[2], SandboxURL: os.Args[3]}, os.Args[4]))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

func newBackend(s sandboxes.E2B) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return e2b.Kind().New(sandboxes.Host{Helper: exe, E2B: s})
}

// settings are those of an account of the server.
func settings(s *e2btest.Server) sandboxes.E2B {
	return sandboxes.E2B{Template: e2btest.Template, Key: s.Key, APIURL: s.URL, SandboxURL: s.URL}
}

func backend(t *testing.T, s sandboxes.E2B) sandboxes.Backend {
	t.Helper()
	b, err := newBackend(s)
	harness.Must(t, err)
	return b
}

func spec() sandboxes.Spec {
	return sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 1, Ready: time.Minute}
}

func TestContract(t *testing.T) {
	root := os.Geteuid() == 0
	sandboxtest.Run(t, sandboxtest.Fixture{
		New: func(t *testing.T) sandboxes.Backend {
			b := backend(t, settings(e2btest.Start(t)))
			harness.Must(t, b.Check(t.Context()))
			return b
		},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
	})
}

// TestCheckNamesTheMissingPart: each part that may be missing has its words.
func TestCheckNamesTheMissingPart(t *testing.T) {
	s := e2btest.Start(t)
	for name, tt := range map[string]struct {
		change func(*sandboxes.E2B)
		says   string
	}{
		"template":       {func(e *sandboxes.E2B) { e.Template = "" }, "--e2b TEMPLATE"},
		"other template": {func(e *sandboxes.E2B) { e.Template = "other" }, "template 'other' not found"},
		"key":            {func(e *sandboxes.E2B) { e.Key = "" }, "E2B_API_KEY"},
		"other key":      {func(e *sandboxes.E2B) { e.Key = "x" }, "401"},
		"server":         {func(e *sandboxes.E2B) { e.APIURL = "http://127.0.0.1:1" }, "ask E2B"},
		"sandboxes":      {func(e *sandboxes.E2B) { e.SandboxURL = "http://127.0.0.1:1" }, "the stream broke"},
	} {
		e := settings(s)
		tt.change(&e)
		err := backend(t, e).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), s.Key) {
			t.Errorf("%s: %v", name, err)
		}
		if asked := !errors.Is(err, sandboxes.ErrNotAsked); asked != (name != "template") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestARedirectIsNotFollowed: the other host would get the key of the account.
func TestARedirectIsNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s, with the key %q", r.Method, r.URL, r.Header.Get("X-Api-Key"))
	}))
	defer elsewhere.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, status))
		b := backend(t, sandboxes.E2B{Template: e2btest.Template, Key: "e2b_key", APIURL: s.URL})
		if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("got %v", err)
		}
		s.Close()
	}
}

// TestAHostileSandboxSendsNoRequestElsewhere: its redirects are not followed.
func TestAHostileSandboxSendsNoRequestElsewhere(t *testing.T) {
	s := e2btest.Start(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s, with the token %q", r.Method, r.URL, r.Header.Get("X-Access-Token"))
	}))
	defer elsewhere.Close()
	hostile := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer hostile.Close()
	e := settings(s)
	e.SandboxURL = hostile.URL
	if _, err := backend(t, e).Create(t.Context(), spec()); err == nil || !strings.Contains(err.Error(), "the stream broke") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsOfAnAccountAreRefusedByName(t *testing.T) {
	for says, e := range map[string]sandboxes.E2B{
		"template":        {Template: "a b"},
		"E2B_DOMAIN":      {Domain: "https://e2b.app"},
		"E2B_API_URL":     {APIURL: "ftp://e2b.app"},
		"E2B_SANDBOX_URL": {SandboxURL: "https://user:secret@e2b.app"},
		"negative":        {Sandboxes: -1},
	} {
		if _, err := newBackend(e); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestSettingsAreRefusedByName: nothing is asked of E2B for them.
func TestSettingsAreRefusedByName(t *testing.T) {
	b := backend(t, sandboxes.E2B{Template: "base", Key: "x", APIURL: "http://127.0.0.1:1"})
	sandboxtest.RefusesByName(t, b)
}

// TestPackagesAreInTheSandbox: the folder of an agent travels, and cannot be changed.
func TestPackagesAreInTheSandbox(t *testing.T) {
	s := e2btest.Start(t)
	dir := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 5<<20), 0o644))
	var log []string
	sp := spec()
	sp.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/opt/agent"}}
	sp.Log = func(line string) { log = append(log, line) }
	sb := sandboxtest.Create(t, backend(t, settings(s)), sp)
	if got := sandboxtest.Output(t, sb, `/opt/agent/bin/hello; wc -c </opt/agent/big; touch /opt/agent/x 2>/dev/null || echo read-only`); got != "hello\n5242880\nread-only\n" {
		t.Errorf("got %q", got)
	}
	if len(log) != 2 || !strings.HasPrefix(log[0], "turngate travels") {
		t.Errorf("log %q", log)
	}
	all := s.Sandboxes()
	if len(all) != 1 || all[0].Metadata["turngate_rollout"] != "alpha-1" || all[0].Metadata["turngate_run"] != "1" || !strings.HasPrefix(all[0].Metadata["turngate_owner"], "w1-") {
		t.Errorf("the sandboxes %+v", all)
	}
}
