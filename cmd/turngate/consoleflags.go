package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/console"
)

// consoleOff is the value of --console for none.
const consoleOff = "off"

// consoleFlags are the flags for a console beside another command.
type consoleFlags struct {
	console         string
	open            bool
	consoleReadOnly bool
}

func (f *consoleFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.console, "console", "", "loopback address of the console, with its URL on stderr; port 0 is a free one; off: no console (default: "+console.DefaultListen+" if stderr is a terminal, else off)")
	fl.BoolVar(&f.open, "open", false, "open the console in this user's browser")
	fl.BoolVar(&f.consoleReadOnly, "console-read-only", false, "let the console only read: no cancel, no retry, no requeue")
}

func (f *consoleFlags) check() error {
	switch f.console {
	case consoleOff:
		if f.open {
			return errors.New("--open: there is no console with --console " + consoleOff + ": leave one of them out")
		}
		return nil
	case "":
		return nil
	}
	if err := console.CheckListen(f.console); err != nil {
		return fmt.Errorf("--console: %w; or %s", err, consoleOff)
	}
	return nil
}

// address returns the address of the console; consoleOff: there is none. Without a
// terminal there is none either, since a reader of the log could open the URL.
func (f *consoleFlags) address() string {
	if f.console == "" && !f.open && !isTerminal(os.Stderr) {
		return consoleOff
	}
	return cmp.Or(f.console, console.DefaultListen)
}

// serve serves a console until stop is called. It prints its URL and errors: a command
// goes on without its console.
func (f *consoleFlags) serve(ctx context.Context, out io.Writer, c console.Config) (stop func()) {
	address := f.address()
	if address == consoleOff {
		return func() {}
	}
	opener, err := newOpener(f.open)
	if err != nil {
		noConsole(out, err)
		return func() {}
	}
	c.Listen, c.Version, c.ReadOnly = address, version, f.consoleReadOnly
	c.Link = func(url string) {
		fmt.Fprintln(out, "console", url)
		opener.open(out, url)
	}
	server, err := console.New(c)
	if err != nil {
		noConsole(out, err)
		return opener.close
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Run(ctx); err != nil {
			noConsole(out, err)
		}
	})
	return func() {
		cancel()
		running.Wait()
		opener.close()
	}
}

// noConsole tells why a command goes on without its console.
func noConsole(out io.Writer, err error) { fmt.Fprintln(out, "there is no console:", err) }

// opener opens the first URL of a console in the user's browser.
type opener struct {
	dir  string // of the file with the URL: other users can read the arguments of a process
	once sync.Once
}

// newOpener returns an opener; unless wanted it opens nothing.
func newOpener(wanted bool) (*opener, error) {
	if !wanted {
		return &opener{}, nil
	}
	dir, err := os.MkdirTemp("", "turngate-console-")
	if err != nil {
		return nil, fmt.Errorf("open a browser: %w", err)
	}
	return &opener{dir: dir}, nil
}

func (o *opener) close() {
	if o.dir != "" {
		os.RemoveAll(o.dir)
	}
}

func (o *opener) open(out io.Writer, url string) {
	if o.dir == "" {
		return
	}
	o.once.Do(func() {
		if err := o.browse(url); err != nil {
			fmt.Fprintln(out, "no browser was opened:", err)
		}
	})
}

func (o *opener) browse(url string) error {
	page := filepath.Join(o.dir, "open.html")
	text := `<!doctype html><meta http-equiv="refresh" content="0;url=` + html.EscapeString(url) + `"><title>turngate</title>`
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		return err
	}
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" { // a browser for terminals would take this one
		return errors.New("this session has no desktop")
	}
	browser := exec.Command(program, page)
	browser.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C at this terminal does not end it
	if err := browser.Start(); err != nil {
		return err
	}
	go func() { _ = browser.Wait() }()
	return nil
}
