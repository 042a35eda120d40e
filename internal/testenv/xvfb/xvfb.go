// Package xvfb starts X servers without a screen, and programs on them, for tests.
package xvfb

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Width is the number of pixels of a row of a server's screen.
const Width = 800

// Height is the number of rows of a server's screen.
const Height = 600

// Server is an X server with a display of its own. It ends with the test.
type Server struct {
	Display string
	cmd     *exec.Cmd
	stop    sync.Once
}

// Start starts a server with more arguments. No other test takes the number of its display,
// also after its end.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("Xvfb")
	testenv.Need(t, "xvfb", err)
	ready, write, err := os.Pipe()
	harness.Must(t, err)
	defer ready.Close()
	s := &Server{Display: fmt.Sprintf(":%d", testenv.FreePort(t))}
	s.cmd = exec.Command(path, append([]string{s.Display, "-displayfd", "3", "-screen", "0", fmt.Sprintf("%dx%dx24", Width, Height), "-nolisten", "tcp", "-noreset"}, args...)...)
	s.cmd.ExtraFiles = []*os.File{write}
	var errs harness.Buffer
	s.cmd.Stderr = &errs
	err = s.cmd.Start()
	write.Close()
	harness.Must(t, err)
	t.Cleanup(s.Stop)
	number, err := io.ReadAll(ready)
	if err == nil && ":"+strings.TrimSpace(string(number)) != s.Display {
		err = fmt.Errorf("its display is %q", number)
	}
	if err == nil {
		_, err = os.Stat("/tmp/.X11-unix/X" + s.Display[1:])
	}
	if err != nil {
		err = fmt.Errorf("no display of Xvfb: %w: %s", err, &errs)
	}
	testenv.Need(t, "xvfb", err)
	return s
}

// Stop ends the server.
func (s *Server) Stop() {
	s.stop.Do(func() {
		_ = s.cmd.Process.Signal(syscall.SIGCONT) // it may be frozen
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
	})
}

// Freeze lets the server answer no more.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	harness.Must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
}

// Terminal starts xterm over the whole screen, with a program that writes each line it
// gets to a file, and waits for its window. typed returns the file.
func (s *Server) Terminal(t testing.TB) (typed func() string) {
	t.Helper()
	path, err := exec.LookPath("xterm")
	testenv.Need(t, "xvfb", err)
	dir := t.TempDir()
	file := filepath.Join(dir, "typed")
	cmd := exec.Command(path, "-u8", "-geometry", "132x50+0+0", "-e", "sh", "-c", `: >"$0"; exec cat >>"$0"`, file)
	cmd.Env = append(os.Environ(), "DISPLAY="+s.Display, "LC_ALL=C.UTF-8", "HOME="+dir)
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	read := func() string {
		text, _ := os.ReadFile(file)
		return string(text)
	}
	harness.Eventually(t, "the terminal", 5*time.Minute, func() bool {
		_, err := os.Stat(file)
		return err == nil && s.window(t)
	})
	return read
}

// window reports whether the display shows a window.
func (s *Server) window(t testing.TB) bool {
	t.Helper()
	conn, err := xgb.NewConnDisplay(s.Display)
	harness.Must(t, err)
	defer func() {
		conn.Close()
		for event, err := conn.WaitForEvent(); event != nil || err != nil; event, err = conn.WaitForEvent() {
		}
	}()
	tree, err := xproto.QueryTree(conn, xproto.Setup(conn).DefaultScreen(conn).Root).Reply()
	harness.Must(t, err)
	return slices.ContainsFunc(tree.Children, func(w xproto.Window) bool {
		a, err := xproto.GetWindowAttributes(conn, w).Reply() // a window may have ended
		return err == nil && a.MapState == xproto.MapStateViewable
	})
}
