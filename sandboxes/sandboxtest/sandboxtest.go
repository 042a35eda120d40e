// Package sandboxtest tests a backend against the contract of package
// sandboxes. A backend's tests call Run and declare the backend's abilities in
// Features; the suite never checks a backend's name.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Features lists optional abilities of a backend.
type Features struct {
	Shell     bool // programs are real ones, started by /bin/sh
	Isolation bool // a process sees nothing of the host or of other sandboxes
	Memory    bool // it enforces sandbox.memory_bytes
	Users     bool // commands can run as a user other than root
	Snapshots bool // a sandbox can be copied
	// OwnKernel: the sandbox has a kernel of its own, which lets root end the helper, and
	// ends the whole sandbox if its memory is used up.
	OwnKernel bool
}

// Fixture is one backend under test.
type Fixture struct {
	New      func(t *testing.T) sandboxes.Backend
	Spec     sandboxes.Spec // image and similar settings; the suite fills in the rest
	Features Features
	// Command returns the argv of one of the suite's programs. Nil: shell scripts.
	Command func(program string, args ...string) []string
}

// shell returns the suite's programs as shell scripts, for backends that run
// real programs.
func shell(program string, args ...string) []string {
	scripts := map[string]string{
		"print":   `printf %s "$1"; printf %s "$2" >&2; exit "$3"`,
		"cat":     `cat`,
		"env":     `printf %s "$(printenv "$1")"`,
		"forever": `echo up; while :; do sleep 1; done`,
		"flood":   `head -c "$1" /dev/zero`,
		"put":     `printf %s "$2" > "$1"`,
		"pwd":     `pwd`,
	}
	return append([]string{"/bin/sh", "-c", scripts[program], "sh"}, args...)
}

// Run runs the whole suite.
func Run(t *testing.T, f Fixture) {
	if f.Command == nil {
		f.Command = shell
	}
	s := &suite{Fixture: f, backend: f.New(t)}
	tests := []struct {
		name string
		need bool
		run  func(*testing.T)
	}{
		{"output and exit", true, s.outputAndExit},
		{"stdin is binary-safe", true, s.stdin},
		{"environment and working directory", true, s.environment},
		{"missing program", true, s.missingProgram},
		{"a large command", true, s.largeCommand},
		{"timeout", true, s.timeout},
		{"output limit", true, s.outputLimit},
		{"signal", true, s.signal},
		{"kill all", true, s.killAll},
		{"files", true, s.files},
		{"tar", true, s.tar},
		{"tar cannot leave its folder", true, s.tarEscape},
		{"tar that cannot be read", true, s.tarBroken},
		{"terminal", s.Features.Shell, s.terminal},
		{"a terminal hangs up", s.Features.Shell, s.hangUp},
		{"forward", true, s.forward},
		{"close ends processes and is idempotent", true, s.close},
		{"create honours its context", true, s.createCancelled},
		{"sweep", true, s.sweep},
		{"a snapshot has the files", f.Features.Snapshots, s.snapshot},
		{"without snapshots the error says so", !f.Features.Snapshots, s.noSnapshot},
		{"gpus are refused by name", true, s.gpus},
		{"what has no network is not put on one", true, s.online},
		{"hostile strings are carried through", f.Features.Shell, s.hostileStrings},
		{"timeout kills the whole tree", f.Features.Shell, s.tree},
		{"held output does not hold the exit", f.Features.Shell, s.heldOutput},
		{"release ends the processes that use a folder", f.Features.Shell, s.release},
		{"a process that was left can write", f.Features.Shell, s.lateOutput},
		{"back-pressure", f.Features.Shell, s.backPressure},
		{"freeze and thaw", f.Features.Shell, s.freeze},
		{"freeze while commands start", f.Features.Shell, s.freezeStarts},
		{"output that is held in the freezer is read", f.Features.Shell, s.frozenOutput},
		{"what is frozen can be ended", true, s.closeFrozen},
		{"special files are not read", f.Features.Shell, s.specialFiles},
		{"its life ends by itself", f.Features.Shell, s.life},
		{"users and capabilities", f.Features.Users, s.users},
		{"the helper cannot be looked into", f.Features.Isolation, s.helperIsPrivate},
		{"the helper cannot be killed", f.Features.Isolation && !f.Features.OwnKernel, s.helperIsSafe},
		{"the helper outlives hostile programs", f.Features.Isolation && !f.Features.OwnKernel, s.hostilePrograms},
		{"the helper outlives a lack of processes", f.Features.Isolation && !f.Features.OwnKernel, s.forkBomb},
		{"small limits are raised or refused", f.Features.Isolation, s.smallLimits},
		{"links of an agent are not followed", f.Features.Users, s.linksOfAgents},
		{"links of root are followed", f.Features.Users, s.linksOfRoot},
		{"folders that exist keep their owner", f.Features.Users, s.foldersKeepTheirOwner},
		{"special files in place of accounts", f.Features.Shell, s.pipesInPlaceOfAccounts},
		{"no network", f.Features.Isolation, s.noNetwork},
		{"sockets of other families and keyrings are refused", f.Features.Isolation, s.systemCalls},
		{"neighbours are apart", f.Features.Isolation, s.neighbours},
		{"orphans are reaped", f.Features.Isolation, s.orphans},
		{"out of memory", f.Features.Memory && !f.Features.OwnKernel, s.memory},
		{"the helper is killed for lack of memory", f.Features.Memory && !f.Features.OwnKernel, s.memoryOfTheHelper},
		{"a lack of memory ends the sandbox", f.Features.Memory && f.Features.OwnKernel, s.memoryOfAll},
		{"an end of the helper is the fault of its processes", f.Features.OwnKernel, s.killedHelper},
	}
	ran := 0
	for _, tt := range tests {
		if !tt.need {
			continue
		}
		ran++
		t.Run(tt.name, tt.run)
	}
	if ran == 0 {
		t.Fatal("the suite ran nothing")
	}
}

type suite struct {
	Fixture
	backend sandboxes.Backend
	count   atomic.Int64
}

func (s *suite) spec() sandboxes.Spec {
	spec := s.Spec
	spec.Owner = owner("suite")
	spec.Rollout = schema.ID(fmt.Sprintf("test-%d-%d", time.Now().UnixNano()%1e9, s.count.Add(1)))
	spec.Attempt = 1
	spec.Ready = time.Minute
	return spec
}

// owner makes a name of this process: the suites of several packages run at once on a host.
func owner(name string) string { return fmt.Sprintf("%s-%d", name, os.Getpid()) }

func (s *suite) open(t *testing.T) sandboxes.Sandbox { return s.openSpec(t, s.spec()) }

func (s *suite) openSpec(t *testing.T, spec sandboxes.Spec) sandboxes.Sandbox {
	t.Helper()
	sb, err := s.backend.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return sb
}

type outcome struct {
	exit        schema.Exit
	out, errOut string
}

func run(t *testing.T, sb sandboxes.Sandbox, c sandboxes.Cmd) outcome {
	t.Helper()
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	p, err := sb.Start(t.Context(), c)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	exit, err := p.Wait()
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return outcome{exit, out.String(), errOut.String()}
}

func (s *suite) sh(t *testing.T, sb sandboxes.Sandbox, script string) outcome {
	t.Helper()
	return run(t, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Timeout: time.Minute})
}

func (s *suite) forward(t *testing.T) {
	sb := s.open(t)
	big := strings.Repeat("x", 200_000)
	settled := make(chan bool, 8)
	base, err := sb.Forward(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, ok := sandboxes.DeliveryFrom(r.Context()); ok {
			d.OnSettled(func(delivered bool) { settled <- delivered })
		}
		fmt.Fprintf(w, "%s %s\n%s", r.Method, r.URL.Path, big)
	}))
	harness.Must(t, err)
	if !strings.HasPrefix(base, "http://127.0.0.1:") {
		t.Fatalf("base URL %s", base)
	}
	other, err := sb.Forward(t.Context(), http.NotFoundHandler())
	harness.Must(t, err)
	if other == base {
		t.Fatalf("two handlers at %s", base)
	}
	if !s.Features.Shell {
		res, err := http.Get(other)
		harness.Must(t, err)
		harness.Must(t, res.Body.Close())
		if res.StatusCode != http.StatusNotFound {
			t.Fatalf("the second handler answered %d", res.StatusCode)
		}
		res, err = http.Get(base + "/hello")
		harness.Must(t, err)
		body, err := io.ReadAll(res.Body)
		harness.Must(t, err)
		harness.Must(t, res.Body.Close())
		if !strings.HasPrefix(string(body), "GET /hello") {
			t.Fatalf("got %.40s", body)
		}
		return
	}
	port := strings.TrimPrefix(base, "http://127.0.0.1:")
	ask := func(reads string) outcome {
		return run(t, sb, sandboxes.Cmd{Args: []string{"/bin/bash", "-c",
			`exec 3<>/dev/tcp/127.0.0.1/$1; printf 'GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3; ` + reads, "bash", port}, Timeout: time.Minute})
	}
	got := ask("cat <&3")
	second := run(t, sb, sandboxes.Cmd{Args: []string{"/bin/bash", "-c",
		`exec 3<>/dev/tcp/127.0.0.1/$1; printf 'GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3; head -n 1 <&3`, "bash", strings.TrimPrefix(other, "http://127.0.0.1:")}, Timeout: time.Minute})
	if !strings.Contains(second.out, "404") {
		t.Fatalf("the second handler: %q %s", second.out, second.errOut)
	}
	if !strings.Contains(got.out, "GET /hello\n") || len(got.out) < len(big) {
		t.Fatalf("got %d bytes: %.200s %s", len(got.out), got.out, got.errOut)
	}
	if !<-settled {
		t.Error("a response that was read to its end counts as lost")
	}
	ask("head -c 10 <&3 >/dev/null; exec 3>&-")
	select {
	case delivered := <-settled:
		_ = delivered // a small answer may fit into the socket's buffer
	case <-time.After(30 * time.Second):
		t.Error("a response whose reader left was never settled")
	}
}

func (s *suite) close(t *testing.T) {
	sb := s.open(t)
	p := s.startUp(t, sb)
	harness.Must(t, sb.Close(t.Context()))
	harness.Must(t, sb.Close(t.Context()))
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) {
		t.Fatalf("wait after close: %v", err)
	}
	if _, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("print", "", "", "0")}); !errors.Is(err, sandboxes.ErrLost) {
		t.Fatalf("start after close: %v", err)
	}
}

func (s *suite) createCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the rollout was cancelled")
	cancel(why)
	sb, err := s.backend.Create(ctx, s.spec())
	if err == nil {
		_ = sb.Close(context.WithoutCancel(ctx))
		t.Fatal("a sandbox was made for a cancelled context")
	}
}

func (s *suite) sweep(t *testing.T) {
	spec := s.spec()
	spec.Owner = owner("swept")
	sb := s.openSpec(t, spec)
	p := s.startUp(t, sb)
	if n, err := s.backend.Sweep(t.Context(), "somebody-else", func(schema.ID) bool { return false }); err != nil || n != 0 {
		t.Fatalf("swept %d of another owner, %v", n, err)
	}
	if n, err := s.backend.Sweep(t.Context(), spec.Owner, func(id schema.ID) bool { return id == spec.Rollout }); err != nil || n != 0 {
		t.Fatalf("swept %d that live, %v", n, err)
	}
	if n, err := s.backend.Sweep(t.Context(), spec.Owner, func(schema.ID) bool { return false }); err != nil || n != 1 {
		t.Fatalf("swept %d, want 1, %v", n, err)
	}
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) {
		t.Fatalf("a swept process: %v", err)
	}
}

func (s *suite) gpus(t *testing.T) {
	spec := s.spec()
	spec.GPUs = 1
	sb, err := s.backend.Create(t.Context(), spec)
	if err == nil {
		_ = sb.Close(t.Context())
	}
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || no.Field != "sandbox.gpus" {
		t.Fatalf("got %v", err)
	}
}
