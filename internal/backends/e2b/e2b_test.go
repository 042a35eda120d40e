package e2b_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/e2b"
	"github.com/turngate/turngate/internal/backends/e2b/e2btest"
	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

func TestMain(m *testing.M) {
	work := func() (sandboxes.Backend, error) {
		return newBackend(sandboxes.E2B{Template: e2btest.Template, Key: os.Getenv("E2B_API_KEY"), APIURL: os.Getenv("E2B_API_URL"), SandboxURL: os.Getenv("E2B_SANDBOX_URL")})
	}
	hostedtest.Main(m, work, hostedtest.Spec(), goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

func newBackend(s sandboxes.E2B) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return e2b.Kind().New(sandboxes.Host{Helper: exe, E2B: s})
}

// settings returns the settings of an account of the server.
func settings(s *e2btest.Server) sandboxes.E2B {
	return sandboxes.E2B{Template: e2btest.Template, Key: s.Key, APIURL: s.URL, SandboxURL: s.URL}
}

func backend(t *testing.T, s sandboxes.E2B) sandboxes.Backend {
	t.Helper()
	b, err := newBackend(s)
	harness.Must(t, err)
	return b
}

func service(s *e2btest.Server) *hostedtest.Service {
	return &hostedtest.Service{Name: "E2B", Env: s.Env(), Made: s.Made, Machines: func() (all []hostedtest.Machine) {
		for _, i := range s.Sandboxes() {
			all = append(all, hostedtest.Machine{ID: i.ID, Pids: i.Pids})
		}
		return all
	}}
}

func TestContract(t *testing.T) {
	testenv.Slow(t)
	hostedtest.Contract(t, func(t *testing.T) sandboxes.Backend { return backend(t, settings(e2btest.Start(t))) })
}

// TestCheckNamesTheMissingPart: each part that may be missing has its words.
func TestCheckNamesTheMissingPart(t *testing.T) {
	testenv.Slow(t)
	s := e2btest.Start(t)
	without := func(change func(*sandboxes.E2B)) func(*testing.T) sandboxes.Backend {
		e := settings(s)
		change(&e)
		return func(t *testing.T) sandboxes.Backend { return backend(t, e) }
	}
	service(s).CheckNames(t, s.Key, map[string]hostedtest.Missing{
		"template":       {Backend: without(func(e *sandboxes.E2B) { e.Template = "" }), Says: "--e2b TEMPLATE", NotAsked: true},
		"other template": {Backend: without(func(e *sandboxes.E2B) { e.Template = "other" }), Says: "template 'other' not found"},
		"key":            {Backend: without(func(e *sandboxes.E2B) { e.Key = "" }), Says: "E2B_API_KEY"},
		"other key":      {Backend: without(func(e *sandboxes.E2B) { e.Key = "x" }), Says: "401"},
		"server":         {Backend: without(func(e *sandboxes.E2B) { e.APIURL = "http://127.0.0.1:1" }), Says: "ask E2B"},
		"sandboxes":      {Backend: without(func(e *sandboxes.E2B) { e.SandboxURL = "http://127.0.0.1:1" }), Says: "the stream broke"},
	})
}

func TestARedirectIsNotFollowed(t *testing.T) {
	hostedtest.NoRedirects(t, func(t *testing.T, url string) sandboxes.Backend {
		return backend(t, sandboxes.E2B{Template: e2btest.Template, Key: "e2b_key", APIURL: url})
	})
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
	if _, err := backend(t, e).Create(t.Context(), hostedtest.Spec()); err == nil || !strings.Contains(err.Error(), "the stream broke") {
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
	hostedtest.PackagesTravel(t, backend(t, settings(s)), hostedtest.Spec())
	all := s.Sandboxes()
	if len(all) != 1 || all[0].Metadata["turngate_rollout"] != "alpha-1" || all[0].Metadata["turngate_run"] != "1" || all[0].Metadata["turngate_owner"] != hostedtest.Owner() {
		t.Errorf("the sandboxes %+v", all)
	}
}
