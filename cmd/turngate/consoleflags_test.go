package main

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
)

// The first URL of a console is opened, from a file that others cannot read; a session
// without a desktop gets a message.
func TestTheFirstURLIsOpened(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("another program opens URLs here")
	}
	dir := t.TempDir()
	opened := filepath.Join(dir, "opened")
	script := "#!/bin/sh\n{ stat -c %a \"$1\"; cat \"$1\"; echo; cut -d' ' -f1,6 /proc/$$/stat; } >>" + opened + ".new && mv " + opened + ".new " + opened + "\n"
	harness.Must(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("WAYLAND_DISPLAY", "")

	for _, display := range []string{"", ":0"} {
		t.Setenv("DISPLAY", display)
		o, err := newOpener(true)
		harness.Must(t, err)
		defer o.close()
		var out strings.Builder
		o.open(&out, "http://127.0.0.1:1/?token=A")
		o.open(&out, "http://127.0.0.1:1/?token=B")
		if display == "" {
			if out.String() != "no browser was opened: this session has no desktop\n" {
				t.Errorf("got %q", &out)
			}
			continue
		}
		var text []byte
		harness.Eventually(t, "a browser", 5*time.Minute, func() bool {
			text, err = os.ReadFile(opened)
			return err == nil
		})
		if !strings.HasPrefix(string(text), "600\n") || !strings.Contains(string(text), "token=A") || strings.Contains(string(text), "token=B") || out.Len() > 0 {
			t.Errorf("got %q and %q", text, &out)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if pid, session, _ := strings.Cut(lines[len(lines)-1], " "); pid != session {
			t.Errorf("the browser %s is in the session %s", pid, session)
		}
	}
}

func TestOpenNeedsAConsole(t *testing.T) {
	for _, f := range []consoleFlags{{}, {open: true}, {console: "127.0.0.1:0", open: true}, {console: consoleOff}} {
		harness.Must(t, f.check())
	}
	f := consoleFlags{console: consoleOff, open: true}
	if err := f.check(); err == nil || !strings.HasPrefix(err.Error(), "--open: ") {
		t.Errorf("got %v", err)
	}
}

// A command goes on without a console if its port is taken.
func TestACommandGoesOnWithoutItsConsole(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	defer other.Close()
	f := consoleFlags{console: other.Addr().String()}
	harness.Must(t, f.check())
	var out harness.Buffer
	stop := f.serve(t.Context(), &out, console.Config{Source: &console.Folder{Dir: t.TempDir()}})
	harness.Eventually(t, "an error", 5*time.Minute, func() bool {
		return strings.Contains(out.String(), "there is no console: serve the console: listen tcp")
	})
	stop()
}
