package modal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/modal"
	"github.com/turngate/turngate/internal/backends/modal/modaltest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// workerLost is the time after which the box of a killed worker ends without it, and its line. A
// worker sends a sign of life every 10 s.
const workerLost = 30 * time.Second

func TestMain(m *testing.M) {
	sp := hostedtest.Spec()
	sp.Lost = workerLost
	hostedtest.Main(m, func() (sandboxes.Backend, error) {
		b, err := newBackend(image())
		if err == nil {
			modal.SetTiming(b, line.Timing{Beat: 5 * time.Second, Silence: workerLost})
		}
		return b, err
	}, sp)
}

// newBackend makes a backend with the environment of this process.
func newBackend(s sandboxes.Modal) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return modal.Kind().New(sandboxes.Host{Helper: exe, Modal: s})
}

// backend makes a backend with these variables: Modal's client reads them when it is made.
func backend(t *testing.T, env []string, s sandboxes.Modal) sandboxes.Backend {
	t.Helper()
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	b, err := newBackend(s)
	harness.Must(t, err)
	t.Cleanup(func() { modal.HangUp(b) })
	return b
}

func image() sandboxes.Modal { return sandboxes.Modal{Image: modaltest.Image} }

func service(s *modaltest.Server) *hostedtest.Service {
	return &hostedtest.Service{Name: "Modal", Env: s.Env(), Made: s.Made, Machines: func() (all []hostedtest.Machine) {
		for _, i := range s.Sandboxes() {
			all = append(all, hostedtest.Machine{ID: i.ID, Pids: i.Pids})
		}
		return all
	}}
}

func TestContract(t *testing.T) {
	testenv.Slow(t)
	hostedtest.Contract(t, func(t *testing.T) sandboxes.Backend { return backend(t, modaltest.Start(t).Env(), image()) })
}

// TestCheckNamesTheMissingPart: each part that may be missing has its words.
func TestCheckNamesTheMissingPart(t *testing.T) {
	s := modaltest.Start(t)
	with := func(set sandboxes.Modal, env ...string) func(*testing.T) sandboxes.Backend {
		return func(t *testing.T) sandboxes.Backend { return backend(t, append(s.Env(), env...), set) }
	}
	service(s).CheckNames(t, s.TokenSecret, map[string]hostedtest.Missing{
		"image":       {Backend: with(sandboxes.Modal{}), Says: "--modal IMAGE", NotAsked: true},
		"other image": {Backend: with(sandboxes.Modal{Image: "other:1"}), Says: "image other:1 not found"},
		"token":       {Backend: with(image(), "MODAL_TOKEN_SECRET="), Says: "missing credentials"},
		"other token": {Backend: with(image(), "MODAL_TOKEN_SECRET=x"), Says: "Token ID or secret is not valid (look at the key of Modal)"},
		"server":      {Backend: with(image(), "MODAL_SERVER_URL=http://127.0.0.1:1"), Says: "503: Unavailable"},
	})
}

// TestTheTokenMayBeInAFile: in the file of Modal's client. No error has it.
func TestTheTokenMayBeInAFile(t *testing.T) {
	s := modaltest.Start(t)
	file := filepath.Join(t.TempDir(), "modal.toml")
	harness.Must(t, os.WriteFile(file, []byte("[default]\nactive = true\ntoken_id = \""+s.TokenID+"\"\ntoken_secret = \""+s.TokenSecret+"\"\n"), 0o600))
	b := backend(t, append(s.Env(), "MODAL_TOKEN_ID=", "MODAL_TOKEN_SECRET=", "MODAL_CONFIG_PATH="+file), image())
	harness.Must(t, b.Check(t.Context()))
	s.Refuse(modaltest.List, 1, codes.DataLoss, 0)
	if _, err := b.Sweep(t.Context(), hostedtest.Owner(), func(schema.ID) bool { return false }); err == nil || !strings.Contains(err.Error(), "with the secret [key]") {
		t.Errorf("a refusal that has the secret: %v", err)
	}
	harness.Must(t, os.WriteFile(file, []byte("no toml"), 0o600))
	t.Setenv("MODAL_CONFIG_PATH", file)
	if _, err := newBackend(image()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

func TestSettingsOfAnAccountAreRefusedByName(t *testing.T) {
	for says, s := range map[string]sandboxes.Modal{
		"image":    {Image: "debian\nRUN evil"},
		"app":      {Image: modaltest.Image, App: "a b"},
		"negative": {Sandboxes: -1},
	} {
		if _, err := newBackend(s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// TestSettingsAreRefusedByName: nothing is asked of Modal for them.
func TestSettingsAreRefusedByName(t *testing.T) {
	sandboxtest.RefusesByName(t, backend(t, []string{"MODAL_SERVER_URL=http://127.0.0.1:1"}, image()))
}

// TestPackagesAreInTheSandbox: the folder of an agent travels, and cannot be changed. The
// virtual machine has the size of the request, and is found by its tags.
func TestPackagesAreInTheSandbox(t *testing.T) {
	s := modaltest.Start(t)
	sp := hostedtest.Spec()
	sp.Owner = strings.Repeat("w", 70)
	sp.CPUs, sp.MemoryBytes, sp.Life, sp.Lost = 3, 1<<30, time.Hour, 2*time.Minute
	hostedtest.PackagesTravel(t, backend(t, s.Env(), image()), sp)
	all := s.Sandboxes()
	if len(all) != 1 {
		t.Fatalf("the sandboxes %+v", all)
	}
	i := all[0]
	if i.Tags["turngate_rollout"] != "alpha-1" || i.Tags["turngate_run"] != "1" || len(i.Tags["turngate_owner"]) != 32 {
		t.Errorf("the tags %v", i.Tags)
	}
	if i.Runtime != "vm" || !i.Closed || i.MilliCPU != 1500 || i.MemoryMiB != 1536 || i.Life != 75*time.Minute || i.Idle != 2*time.Minute {
		t.Errorf("the machine %+v", i)
	}
}
