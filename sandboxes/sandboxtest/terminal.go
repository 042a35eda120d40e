package sandboxtest

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// screen collects the output of a terminal.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // capacity 1
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// shows waits for a text.
func (s *screen) shows(t *testing.T, text string) {
	t.Helper()
	limit := time.After(5 * time.Minute)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-limit:
			t.Fatalf("no %q in %q", text, s)
		}
	}
}

// terminal runs a shell as a person would: the terminal is the controlling one, has a
// size that changes, passes Ctrl-C on as SIGINT and Ctrl-D as the end of the input.
func (s *suite) terminal(t *testing.T) {
	users := []string{"root"}
	if s.Features.Users {
		users = append(users, "nobody")
	}
	for _, user := range users {
		for _, untrusted := range []bool{false, true} {
			sb := s.open(t)
			keys, typing := io.Pipe()
			out, sizes := newScreen(), make(chan sandboxes.TerminalSize)
			script := `trap 'echo interrupted' INT
trap 'resized=1' WINCH
test -t 0 && test -t 1 && test -t 2 && tty && : </dev/tty && stty size
echo ready
while read -r line; do
	echo "<$line>"
	if test "$line" = size; then until test -n "$resized"; do sleep 0.05; done; fi
	test -z "$resized" || echo resized
done
stty size
echo ended; exit 3`
			p, err := sb.Start(t.Context(), sandboxes.Cmd{
				Args: []string{"/bin/bash", "-c", script}, Env: map[string]string{"TERM": "xterm"}, User: user, Untrusted: untrusted, Dir: "/tmp", Stdin: keys, Stdout: out,
				Terminal: &sandboxes.Terminal{Size: sandboxes.TerminalSize{Rows: 31, Cols: 97}, Resized: sizes},
			})
			harness.Must(t, err)
			out.shows(t, "ready")
			if got := out.String(); !strings.Contains(got, "/dev/pts/") || !strings.Contains(got, "31 97") {
				t.Errorf("%s: got %q", user, got)
			}
			typed := func(text string) {
				_, err := io.WriteString(typing, text)
				harness.Must(t, err)
			}
			typed("hello\r")
			out.shows(t, "<hello>")
			typed("\x03\r") // bash runs a trap after its read, if the signal came just before it
			out.shows(t, "interrupted")
			typed("size\r")
			sizes <- sandboxes.TerminalSize{Rows: 40, Cols: 120}
			out.shows(t, "resized")
			typing.Close()
			exit, err := p.Wait()
			if got := out.String(); err != nil || exit.Code != 3 || !strings.Contains(got, "40 120") || !strings.Contains(got, "ended") {
				t.Errorf("%s: %+v, %v, %q", user, exit, err, got)
			}
		}
	}
}

// hangUp leaves a process at the terminal of a shell that ends: the shell's exit arrives.
func (s *suite) hangUp(t *testing.T) {
	out := newScreen()
	p, err := s.open(t).Start(t.Context(), sandboxes.Cmd{
		Args: []string{"/bin/sh", "-c", "sleep 1000 & echo left; exit 4"}, Stdout: out, Terminal: &sandboxes.Terminal{Size: sandboxes.TerminalSize{Rows: 24, Cols: 80}},
	})
	harness.Must(t, err)
	exit, err := p.Wait()
	if err != nil || exit.Code != 4 || !strings.Contains(out.String(), "left") {
		t.Errorf("%+v, %v, %q", exit, err, out)
	}
}
