package prime_test

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/prime"
	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

func TestMain(m *testing.M) {
	work := func() (sandboxes.Backend, error) {
		return newBackend(sandboxes.Prime{Image: primetest.Image, Key: os.Getenv("PRIME_API_KEY"), APIURL: os.Getenv("PRIME_API_BASE_URL")})
	}
	hostedtest.Main(m, work, hostedtest.Spec(), goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

func newBackend(s sandboxes.Prime) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return prime.Kind().New(sandboxes.Host{Helper: exe, Prime: s})
}

// settings returns the settings for the account of the server.
func settings(s *primetest.Server) sandboxes.Prime {
	return sandboxes.Prime{Image: primetest.Image, Key: s.Key, APIURL: s.URL}
}

func backend(t *testing.T, s sandboxes.Prime) sandboxes.Backend {
	t.Helper()
	b, err := newBackend(s)
	harness.Must(t, err)
	return b
}

func service(s *primetest.Server) *hostedtest.Service {
	return &hostedtest.Service{Name: "Prime", Env: s.Env(), Made: s.Made, Machines: func() (all []hostedtest.Machine) {
		for _, i := range s.Sandboxes() {
			all = append(all, hostedtest.Machine{ID: i.ID, Pids: i.Pids})
		}
		return all
	}}
}

func TestContract(t *testing.T) {
	testenv.Slow(t)
	hostedtest.Contract(t, func(t *testing.T) sandboxes.Backend { return backend(t, settings(primetest.Start(t))) })
}

// TestCheckNamesTheMissingPart: each part that may be missing has its words.
func TestCheckNamesTheMissingPart(t *testing.T) {
	testenv.Slow(t)
	s := primetest.Start(t)
	without := func(change func(*sandboxes.Prime)) func(*testing.T) sandboxes.Backend {
		p := settings(s)
		change(&p)
		return func(t *testing.T) sandboxes.Backend { return backend(t, p) }
	}
	service(s).CheckNames(t, s.Key, map[string]hostedtest.Missing{
		"image":       {Backend: without(func(p *sandboxes.Prime) { p.Image = "" }), Says: "--prime IMAGE", NotAsked: true},
		"other image": {Backend: without(func(p *sandboxes.Prime) { p.Image = "other" }), Says: "image 'other' not found"},
		"key":         {Backend: without(func(p *sandboxes.Prime) { p.Key = "" }), Says: "PRIME_API_KEY"},
		"other key":   {Backend: without(func(p *sandboxes.Prime) { p.Key = "x" }), Says: "401"},
		"server":      {Backend: without(func(p *sandboxes.Prime) { p.APIURL = "http://127.0.0.1:1" }), Says: "ask Prime"},
		"size":        {Backend: without(func(p *sandboxes.Prime) { p.CPUs = 99 }), Says: "the size is out of range"},
	})
}

func TestARedirectIsNotFollowed(t *testing.T) {
	hostedtest.NoRedirects(t, func(t *testing.T, url string) sandboxes.Backend {
		return backend(t, sandboxes.Prime{Image: primetest.Image, Key: "prime_key", APIURL: url})
	})
}

func TestSettingsOfAnAccountAreRefusedByName(t *testing.T) {
	for says, p := range map[string]sandboxes.Prime{
		"image":              {Image: "a b"},
		"PRIME_TEAM_ID":      {Team: "a/b"},
		"PRIME_API_BASE_URL": {APIURL: "https://user:secret@primeintellect.ai"},
		"size":               {MemoryGB: -1},
		"--prime-cpus NaN":   {CPUs: math.NaN()},
		"--prime-disk-gb":    {DiskGB: math.Inf(1)},
		"number":             {Sandboxes: -1},
	} {
		if _, err := newBackend(p); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestSettingsAreRefusedByName: nothing is asked of Prime for them.
func TestSettingsAreRefusedByName(t *testing.T) {
	b := backend(t, sandboxes.Prime{Image: primetest.Image, Key: "x", APIURL: "http://127.0.0.1:1"})
	sandboxtest.RefusesByName(t, b)
}

// TestASandboxIsSetUp: the folder of an agent travels and cannot be changed, the network is
// closed, and Prime knows the labels of the sandbox and its times.
func TestASandboxIsSetUp(t *testing.T) {
	s := primetest.Start(t)
	sp := hostedtest.Spec()
	sp.Life, sp.Lost = 10*time.Minute, 90*time.Second
	hostedtest.PackagesTravel(t, backend(t, settings(s)), sp)
	all := s.Sandboxes()
	if len(all) != 1 || !all[0].Closed || all[0].Life != 70 || all[0].Idle != 2 ||
		!slices.Equal(all[0].Labels, []string{"turngate-owner-" + hostedtest.Owner(), "turngate-rollout-alpha-1", "turngate-run-1"}) {
		t.Errorf("the sandboxes %+v", all)
	}
}

// TestASlowSandboxIsWaitedFor: its image is built, its network is closed later, the
// gateway does not know it at first, and tokens end while Prime gives no others.
func TestASlowSandboxIsWaitedFor(t *testing.T) {
	s := primetest.Start(t)
	s.Delay(2, 1, 1)
	var log []string
	sp := hostedtest.Spec()
	sp.Log = func(line string) { log = append(log, line) }
	sb := sandboxtest.Create(t, backend(t, settings(s)), sp)
	if len(log) != 2 || !strings.Contains(log[0], "makes a machine of the image") {
		t.Errorf("log %q", log)
	}
	all := s.Sandboxes()
	if len(all) != 1 || !all[0].Closed {
		t.Fatalf("the sandboxes %+v", all)
	}
	s.Expire(all[0].ID)
	s.LoseInputs(1)
	s.RefuseTokens(1)
	if got := sandboxtest.Output(t, sb, `echo still here`); got != "still here\n" {
		t.Errorf("got %q", got)
	}
}
