// Package sandboxtest holds every backend to the contract of package
// sandboxes. A backend's tests call Run; what a backend cannot do is declared
// in Features, never branched on its name.
package sandboxtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Features says what a backend can do beyond the least.
type Features struct {
	Shell     bool // its programs are real ones, started by /bin/sh
	Isolation bool // a process sees nothing of the host or of its neighbours
	Memory    bool // it enforces sandbox.memory_bytes
	Users     bool // commands can run as another user than root
}

// Fixture is one backend under test.
type Fixture struct {
	New      func(t *testing.T) sandboxes.Backend
	Spec     sandboxes.Spec // image and the like; the suite fills in the rest
	Features Features
	// Command gives the argv of one of the suite's programs. Nil: Shell.
	Command func(program string, args ...string) []string
}

// Shell gives the suite's programs as shell scripts, for backends that run
// real ones.
func Shell(program string, args ...string) []string {
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
		f.Command = Shell
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
		{"timeout", true, s.timeout},
		{"output limit", true, s.outputLimit},
		{"signal", true, s.signal},
		{"kill all", true, s.killAll},
		{"files", true, s.files},
		{"tar", true, s.tar},
		{"tar cannot leave its folder", true, s.tarEscape},
		{"forward", true, s.forward},
		{"close ends processes and is idempotent", true, s.close},
		{"create honours its context", true, s.createCancelled},
		{"sweep", true, s.sweep},
		{"gpus are refused by name", true, s.gpus},
		{"hostile strings are carried through", f.Features.Shell, s.hostileStrings},
		{"timeout kills the whole tree", f.Features.Shell, s.tree},
		{"held output does not hold the exit", f.Features.Shell, s.heldOutput},
		{"back-pressure", f.Features.Shell, s.backPressure},
		{"freeze and thaw", f.Features.Shell, s.freeze},
		{"output that is held in the freezer is read", f.Features.Shell, s.frozenOutput},
		{"what is frozen can be ended", true, s.closeFrozen},
		{"special files are not read", f.Features.Shell, s.specialFiles},
		{"its life ends by itself", f.Features.Shell, s.life},
		{"users and capabilities", f.Features.Users, s.users},
		{"the helper cannot be killed or looked into", f.Features.Isolation, s.helperIsSafe},
		{"no network", f.Features.Isolation, s.noNetwork},
		{"neighbours are apart", f.Features.Isolation, s.neighbours},
		{"orphans are reaped", f.Features.Isolation, s.orphans},
		{"out of memory", f.Features.Memory, s.memory},
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
	spec.Owner = "suite"
	spec.Rollout = schema.ID(fmt.Sprintf("test-%d-%d", time.Now().UnixNano()%1e9, s.count.Add(1)))
	spec.Attempt = 1
	spec.Ready = time.Minute
	return spec
}

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

func (s *suite) outputAndExit(t *testing.T) {
	sb := s.open(t)
	got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "out", "err", "3")})
	if got.out != "out" || got.errOut != "err" || got.exit.Code != 3 || got.exit.OK() || got.exit.StdoutBytes != 3 {
		t.Fatalf("got %+v", got)
	}
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "", "", "0")}); !got.exit.OK() {
		t.Fatalf("got %+v", got)
	}
}

func (s *suite) stdin(t *testing.T) {
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	got := run(t, s.open(t), sandboxes.Cmd{Args: s.Command("cat"), Stdin: bytes.NewReader(data)})
	if got.out != string(data) {
		t.Fatalf("%d bytes came back, want %d", len(got.out), len(data))
	}
}

func (s *suite) environment(t *testing.T) {
	spec := s.spec()
	spec.Env = map[string]string{"A": "1", "B": "spec"}
	spec.Workdir = "/app"
	sb := s.openSpec(t, spec)
	if sb.Workdir() != "/app" {
		t.Fatalf("workdir %s", sb.Workdir())
	}
	for name, want := range map[string]string{"A": "1", "B": "cmd two\nlines"} {
		got := run(t, sb, sandboxes.Cmd{Args: s.Command("env", name), Env: map[string]string{"B": "cmd two\nlines"}})
		if got.out != want {
			t.Errorf("%s=%q, want %q", name, got.out, want)
		}
	}
	for dir, want := range map[string]string{"": "/app", "/made/here": "/made/here"} {
		got := run(t, sb, sandboxes.Cmd{Args: s.Command("pwd"), Dir: dir})
		if strings.TrimSpace(got.out) != want {
			t.Errorf("in %q: %q", dir, got.out)
		}
	}
}

func (s *suite) missingProgram(t *testing.T) {
	_, err := s.open(t).Start(t.Context(), sandboxes.Cmd{Args: []string{"no-such-program"}})
	var none *sandboxes.NoCommandError
	if !errors.As(err, &none) || none.Arg != "no-such-program" {
		t.Fatalf("got %v", err)
	}
}

func (s *suite) timeout(t *testing.T) {
	got := run(t, s.open(t), sandboxes.Cmd{Args: s.Command("forever"), Timeout: 300 * time.Millisecond})
	if !got.exit.TimedOut || got.exit.OK() || got.exit.OOM {
		t.Fatalf("got %+v", got.exit)
	}
}

func (s *suite) outputLimit(t *testing.T) {
	got := run(t, s.open(t), sandboxes.Cmd{Args: s.Command("flood", "1000000"), OutputLimit: 1000})
	if len(got.out) != 1000 || got.exit.StdoutBytes != 1_000_000 || !got.exit.OK() {
		t.Fatalf("%d bytes kept, %+v", len(got.out), got.exit)
	}
}

// startUp starts the forever program and returns when it runs.
func (s *suite) startUp(t *testing.T, sb sandboxes.Sandbox) sandboxes.Process {
	t.Helper()
	r, w := io.Pipe()
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("forever"), Stdout: w})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, r) //nolint:errcheck // a pipe in memory
	t.Cleanup(func() { r.Close() })
	return p
}

func (s *suite) signal(t *testing.T) {
	p := s.startUp(t, s.open(t))
	if err := p.Signal(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	if err != nil || exit.Signal != "killed" || exit.TimedOut {
		t.Fatalf("got %+v, %v", exit, err)
	}
	if err := p.Signal(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatalf("a signal to what has ended: %v", err)
	}
}

func (s *suite) killAll(t *testing.T) {
	sb := s.open(t)
	a, b := s.startUp(t, sb), s.startUp(t, sb)
	if err := sb.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []sandboxes.Process{a, b} {
		if exit, err := p.Wait(); err != nil || exit.OK() {
			t.Fatalf("got %+v, %v", exit, err)
		}
	}
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "still", "", "0")}); got.out != "still" {
		t.Fatalf("the sandbox is of no use after KillAll: %+v", got)
	}
}

func (s *suite) files(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	data := []byte("a\x00b\xff\n")
	must(t, f.Write(ctx, "/data/deep/x.bin", data, 0o640, ""))
	got, err := f.Read(ctx, "/data/deep/x.bin", 100)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("read %q, %v", got, err)
	}
	info, err := f.Stat(ctx, "/data/deep/x.bin")
	if err != nil || info.Size != 5 || info.Mode.Perm() != 0o640 {
		t.Fatalf("stat %+v, %v", info, err)
	}
	must(t, f.Mkdir(ctx, "/data/dir", 0o755, ""))
	list, err := f.List(ctx, "/data")
	if err != nil || len(list) != 2 {
		t.Fatalf("list %+v, %v", list, err)
	}
	var large *sandboxes.TooLargeError
	if _, err := f.Read(ctx, "/data/deep/x.bin", 4); !errors.As(err, &large) {
		t.Fatalf("read beyond the limit: %v", err)
	}
	must(t, f.Remove(ctx, "/data"))
	must(t, f.Remove(ctx, "/data"))
	if _, err := f.Read(ctx, "/data/deep/x.bin", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("read of a removed file: %v", err)
	}
}

func tarOf(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := []byte("of " + h.Name)
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write(body)
			must(t, err)
		}
	}
	must(t, w.Close())
	return &b
}

func (s *suite) tar(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	in := tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "d/run.sh", Typeflag: tar.TypeReg, Mode: 0o755}, tar.Header{Name: "e/f", Typeflag: tar.TypeReg, Mode: 0o644})
	must(t, f.TarIn(ctx, "/in", in, ""))
	if got, err := f.Read(ctx, "/in/d/run.sh", 100); err != nil || string(got) != "of d/run.sh" {
		t.Fatalf("got %q, %v", got, err)
	}
	if info, err := f.Stat(ctx, "/in/d/run.sh"); err != nil || info.Mode.Perm() != 0o755 {
		t.Fatalf("got %+v, %v", info, err)
	}
	var out bytes.Buffer
	must(t, f.TarOut(ctx, "/in", &out, 1<<20))
	names := map[string]bool{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if h.Typeflag == tar.TypeReg {
			names[h.Name] = true
		}
	}
	if !names["d/run.sh"] || !names["e/f"] || len(names) != 2 {
		t.Fatalf("got %v", names)
	}
	if err := f.TarOut(ctx, "/in", io.Discard, 10); err == nil {
		t.Fatal("a tree beyond the limit was packed")
	}
}

func (s *suite) tarEscape(t *testing.T) {
	f, ctx := s.open(t).Files(), t.Context()
	must(t, f.Write(ctx, "/outside/keep", []byte("mine"), 0o644, ""))
	for name, archive := range map[string]*bytes.Buffer{
		"dots":    tarOf(t, tar.Header{Name: "../outside/keep", Typeflag: tar.TypeReg, Mode: 0o644}),
		"symlink": tarOf(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, tar.Header{Name: "l/keep", Typeflag: tar.TypeReg, Mode: 0o644}),
	} {
		if err := f.TarIn(ctx, "/in", archive, ""); err == nil {
			t.Errorf("%s: the archive was unpacked", name)
		}
		if got, err := f.Read(ctx, "/outside/keep", 100); err != nil || string(got) != "mine" {
			t.Errorf("%s: the file outside is %q, %v", name, got, err)
		}
	}
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
	must(t, err)
	if !strings.HasPrefix(base, "http://127.0.0.1:") {
		t.Fatalf("base URL %s", base)
	}
	if _, err := sb.Forward(t.Context(), http.NotFoundHandler()); err == nil {
		t.Fatal("a second handler was taken")
	}
	if !s.Features.Shell {
		res, err := http.Get(base + "/hello")
		must(t, err)
		body, err := io.ReadAll(res.Body)
		must(t, err)
		must(t, res.Body.Close())
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
	must(t, sb.Close(t.Context()))
	must(t, sb.Close(t.Context()))
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
	spec.Owner = "swept"
	sb := s.openSpec(t, spec)
	p := s.startUp(t, sb)
	if n, err := s.backend.Sweep(t.Context(), "somebody-else", func(schema.ID) bool { return false }); err != nil || n != 0 {
		t.Fatalf("swept %d of another owner, %v", n, err)
	}
	if n, err := s.backend.Sweep(t.Context(), "swept", func(id schema.ID) bool { return id == spec.Rollout }); err != nil || n != 0 {
		t.Fatalf("swept %d that live, %v", n, err)
	}
	if n, err := s.backend.Sweep(t.Context(), "swept", func(schema.ID) bool { return false }); err != nil || n != 1 {
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
