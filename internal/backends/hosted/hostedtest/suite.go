package hostedtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// Service is a test server of a service, as the tests of all backends see it.
type Service struct {
	Name     string // as in hosted.Settings
	Env      []string
	Machines func() []Machine // that exist
	Made     func() []time.Time
}

// Machine is a sandbox of a service, with the pids of the processes that live there.
type Machine struct {
	ID   string
	Pids []int
}

// Owner returns the owner of the sandboxes of Spec, with the name of the test binary: the
// tests of several packages run at once, and their sandboxes have cgroups on one host.
func Owner() string { return strings.TrimSuffix(filepath.Base(os.Args[0]), ".test") }

// Spec returns the sandbox that most tests make.
func Spec() sandboxes.Spec {
	return sandboxes.Spec{Owner: Owner(), Rollout: "alpha-1", Attempt: 1, Ready: time.Minute}
}

// Main lets the test binary act as turngate in a sandbox, and as the worker of KillWorker,
// which makes a sandbox of a spec at the service of its environment.
func Main(m *testing.M, backend func() (sandboxes.Backend, error), s sandboxes.Spec, leaks ...goleak.Option) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "box":
		os.Exit(local.BoxMain(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == far.Command:
		os.Exit(far.Serve(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == "work":
		b, err := backend()
		if err == nil {
			err = sandboxtest.Work(b, s, os.Args[2])
		}
		fmt.Println(err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, leaks...)
}

// Contract runs the conformance suite.
func Contract(t *testing.T, backend func(t *testing.T) sandboxes.Backend) {
	root := os.Geteuid() == 0
	sandboxtest.Run(t, sandboxtest.Fixture{
		New: func(t *testing.T) sandboxes.Backend {
			b := backend(t)
			harness.Must(t, b.Check(t.Context()))
			return b
		},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
	})
}

// Missing is a backend that lacks a part, and the words for it.
type Missing struct {
	Backend  func(t *testing.T) sandboxes.Backend
	Says     string
	NotAsked bool // the settings ask for no sandboxes
}

// CheckNames tests that Check names each missing part, without the secret of the account,
// and leaves nothing.
func (s *Service) CheckNames(t *testing.T, secret string, cases map[string]Missing) {
	t.Helper()
	for name, tt := range cases {
		err := tt.Backend(t).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.Says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, sandboxes.ErrNotAsked) != tt.NotAsked {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.nothingLeft(t)
}

func (s *Service) nothingLeft(t *testing.T) {
	t.Helper()
	if left := s.Machines(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// NoRedirects tests that a backend with the URL of a control plane follows no redirect of it:
// the other host would get the key of the account.
func NoRedirects(t *testing.T, backend func(t *testing.T, url string) sandboxes.Backend) {
	t.Helper()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s, with the header %q", r.Method, r.URL, r.Header)
	}))
	defer elsewhere.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		s := httptest.NewServer(http.RedirectHandler(elsewhere.URL, status))
		if err := backend(t, s.URL).Check(t.Context()); err == nil || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("got %v", err)
		}
		s.Close()
	}
}

// PackagesTravel makes a sandbox with the packages of an agent, and tests that they travel and
// cannot be changed.
func PackagesTravel(t *testing.T, b sandboxes.Backend, s sandboxes.Spec) {
	t.Helper()
	dir := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 5<<20), 0o644))
	var log []string
	s.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/opt/agent"}}
	s.Log = func(line string) { log = append(log, line) }
	sb := sandboxtest.Create(t, b, s)
	if got := sandboxtest.Output(t, sb, `/opt/agent/bin/hello; wc -c </opt/agent/big; touch /opt/agent/x 2>/dev/null || echo read-only`); got != "hello\n5242880\nread-only\n" {
		t.Errorf("got %q", got)
	}
	if len(log) != 2 || !strings.HasPrefix(log[0], "turngate travels") {
		t.Errorf("log %q", log)
	}
}

// GoesOn tests that a sandbox outlives its stream, which cut breaks: a command in it goes on, no
// byte is lost and nothing runs twice. Of the processes that carried the stream only the first and
// the last one are left, and after the end nothing.
func (s *Service) GoesOn(t *testing.T, b sandboxes.Backend, cut func(Machine)) {
	t.Helper()
	sb := sandboxtest.Create(t, b, Spec())
	first := s.Machines()
	if len(first) != 1 {
		t.Fatalf("the sandboxes %+v", first)
	}
	once := func() { cut(first[0]) }
	sandboxtest.GoesOn(t, sb, once, once, once)
	harness.Eventually(t, "two processes", 5*time.Minute, func() bool {
		all := s.Machines()
		return len(all) == 1 && all[0].ID == first[0].ID && len(all[0].Pids) == 2
	})
	harness.Must(t, sb.Close(t.Context()))
	s.nothingLeft(t)
}

// Ending ends a machine, and has the words for it.
type Ending struct {
	By   func(Machine)
	Says string
}

// Killed ends the turngate in a machine.
func Killed(t *testing.T, says string) Ending {
	return Ending{func(m Machine) { harness.Must(t, syscall.Kill(m.Pids[0], syscall.SIGKILL)) }, says}
}

// EndIsLost tests that a sandbox is lost after the end of its machine, and that Close removes
// the rest.
func (s *Service) EndIsLost(t *testing.T, b sandboxes.Backend, ends map[string]Ending) {
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			sb := sandboxtest.Create(t, b, Spec())
			p := sandboxtest.Up(t, sb, sandboxtest.Mark(t))
			all := s.Machines()
			if len(all) != 1 || len(all[0].Pids) != 1 {
				t.Fatalf("the sandboxes %+v", all)
			}
			tt.By(all[0])
			if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || !strings.Contains(err.Error(), tt.Says) {
				t.Errorf("the process ends with %v", err)
			}
			harness.Must(t, sb.Close(t.Context()))
			s.nothingLeft(t)
			noProcess(t, sandboxtest.Mark(t))
			_, err := b.Sweep(t.Context(), Owner(), func(schema.ID) bool { return false })
			harness.Must(t, err)
		})
	}
}

func noProcess(t *testing.T, mark string) {
	t.Helper()
	harness.Eventually(t, "no process is left", 5*time.Minute, func() bool { return len(sandboxtest.Processes(mark)) == 0 })
}

// KillWorker starts a worker with one sandbox and kills it. The mark is that of the command
// there, see sandboxtest.Work.
func (s *Service) KillWorker(t *testing.T) (mark string) {
	t.Helper()
	exe, err := os.Executable()
	harness.Must(t, err)
	mark = sandboxtest.Mark(t)
	cmd := exec.Command(exe, "work", mark)
	cmd.Env = append(os.Environ(), s.Env...)
	out, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	harness.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if err != nil || line != "up\n" {
		t.Fatalf("the worker says %q, %v", line, err)
	}
	return mark
}

// IsSwept tests that the next process of a killed worker removes the sandbox, unless its
// rollout is spared.
func (s *Service) IsSwept(t *testing.T, b sandboxes.Backend, mark string) {
	t.Helper()
	if n, err := b.Sweep(t.Context(), Owner(), func(id schema.ID) bool { return id == Spec().Rollout }); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if n, err := b.Sweep(t.Context(), Owner(), func(schema.ID) bool { return false }); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	s.nothingLeft(t)
	noProcess(t, mark)
}

// SweepsAllPages tests a sweep of many sandboxes, which a list has on several pages. one makes
// a sandbox of a rollout.
func (s *Service) SweepsAllPages(t *testing.T, b sandboxes.Backend, many int, one func(owner, rollout string) error) {
	t.Helper()
	before := len(s.Machines())
	for i := range many {
		harness.Must(t, one(Owner(), fmt.Sprintf("alpha-%d", i)))
	}
	harness.Must(t, one("another", "alpha-0"))
	if n, err := b.Sweep(t.Context(), Owner(), func(id schema.ID) bool { return id == "alpha-3" }); n != many-1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if left := s.Machines(); len(left) != before+2 {
		t.Errorf("left: %+v", left)
	}
}

// WaitsWhenRefused tests that a refusal for now is waited for as long as the service asks, and
// that no wait begins for which no time is left. refuse lets the service refuse sandboxes so
// many times, says is in the error.
func (s *Service) WaitsWhenRefused(t *testing.T, b sandboxes.Backend, refuse func(times int, after time.Duration), says string) {
	t.Helper()
	refuse(2, time.Second)
	before := time.Now()
	sp := Spec()
	var log []string
	sp.Log = func(line string) { log = append(log, line) }
	sandboxtest.Create(t, b, sp)
	if waited := s.Made()[0].Sub(before); waited < 2*time.Second || len(log) < 2 || !strings.Contains(log[0], says) || !strings.Contains(log[1], "another try in 1s") {
		t.Errorf("after %s: %q", waited, log)
	}
	refuse(1, time.Hour)
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.Create(short, sp); err == nil || !strings.Contains(err.Error(), "no time is left") || !strings.Contains(err.Error(), says) || short.Err() != nil {
		t.Errorf("a wait that is too long: %v", err)
	}
}

// OneAtOnce tests a backend with a bound of one sandbox: the next one waits until the first is
// closed.
func (s *Service) OneAtOnce(t *testing.T, b sandboxes.Backend) {
	t.Helper()
	first := sandboxtest.Create(t, b, Spec())
	sp := Spec()
	sp.Attempt = 2
	waits := make(chan struct{}, 8)
	sp.Log = func(line string) {
		if strings.Contains(line, "all 1 sandboxes of "+s.Name+" are in use") {
			waits <- struct{}{}
		}
	}
	second := make(chan sandboxes.Sandbox, 1)
	go func() {
		sb, err := b.Create(t.Context(), sp)
		if err != nil {
			t.Error(err)
		}
		second <- sb
	}()
	<-waits
	if all := s.Machines(); len(all) != 1 {
		t.Errorf("the sandboxes %+v", all)
	}
	harness.Must(t, first.Close(t.Context()))
	if sb := <-second; sb != nil {
		harness.Must(t, sb.Close(t.Context()))
	}
}
