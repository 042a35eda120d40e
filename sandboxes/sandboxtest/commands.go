package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

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

// largeCommand starts a program with an environment of 600 KB, and one with more than
// Linux takes. Afterwards the sandbox is as before.
func (s *suite) largeCommand(t *testing.T) {
	sb := s.open(t)
	environment := func(n int) map[string]string {
		env := map[string]string{}
		for i := range n {
			env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 60_000)
		}
		return env
	}
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("env", "V9"), Env: environment(10)}); len(got.out) != 60_000 {
		t.Errorf("a variable has %d bytes", len(got.out))
	}
	for _, n := range []int{50, 100} {
		p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: s.Command("env", "V9"), Env: environment(n)})
		var none *sandboxes.NoCommandError
		if err == nil {
			_, err = p.Wait()
		}
		if err != nil && !errors.As(err, &none) {
			t.Errorf("an environment of %d variables: %v", n, err)
		}
	}
	if got := run(t, sb, sandboxes.Cmd{Args: s.Command("print", "out", "", "0")}); got.out != "out" {
		t.Errorf("afterwards: %+v", got)
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

// startUp starts the forever program and returns when it is running.
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
