package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
)

// footprint has the resources of a process, by its Go runtime and the kernel.
type footprint struct {
	heap       int64 // bytes in use after a collection
	resident   int64 // bytes
	goroutines int
	files      int // open descriptors
}

// ask asks a process over its debug socket.
func (p *process) ask(method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		for { // a process that was just started does not listen yet
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", "@"+p.debug)
			if !errors.Is(err, syscall.ECONNREFUSED) || !p.alive() || !wait(ctx, 20*time.Millisecond) {
				return conn, err
			}
		}
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://process"+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", p.role, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("ask %s for %s: %s: %s", p.role, path, res.Status, data)
	}
	return data, err
}

// stepClock moves the wall clock of a process.
func (p *process) stepClock(d time.Duration) error {
	_, err := p.ask(http.MethodPost, history.PathClock+"?step="+url.QueryEscape(d.String()))
	return err
}

// footprint measures a process.
func (b *bench) footprint(p *process) footprint {
	b.t.Helper()
	var f footprint
	heap, err := p.ask(http.MethodGet, history.PathHeap)
	if err == nil {
		f.heap, err = strconv.ParseInt(string(heap), 10, 64)
	}
	var stacks []string
	if err == nil {
		stacks, err = p.goroutines()
	}
	f.goroutines = len(stacks)
	if err == nil {
		f.files, err = p.files()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	f.resident = resident(b.t, p)
	return f
}

// goroutines returns the stacks of the goroutines of a process, without those
// that every process of a run has.
func (p *process) goroutines() ([]string, error) {
	data, err := p.ask(http.MethodGet, history.PathGoroutines)
	if err != nil {
		return nil, err
	}
	var out []string
	for stack := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n\n") {
		if strings.Contains(stack, "main.serveDebug") || strings.Contains(stack, "\nmain.main()") ||
			strings.Contains(stack, "os/signal.") || strings.Contains(stack, "runtime.ensureSigM") || strings.Contains(stack, "(*connReader).backgroundRead") {
			continue
		}
		out = append(out, stack)
	}
	return out, nil
}

// files counts the open descriptors of a process.
func (p *process) files() (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	return len(all), err
}

// resident returns the resident memory of a process in bytes, from the kernel.
func resident(t testing.TB, p *process) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	size, _, _ := strings.Cut(rest, "kB")
	kb, err := strconv.ParseInt(strings.TrimSpace(size), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// strays lists the processes with a program in the run's folder, such as the boxes
// of local sandboxes. It leaves out the processes that the run itself started.
func (b *bench) strays() ([]string, error) {
	known := map[string]bool{}
	for _, p := range append(b.all(), b.peers...) {
		if p.alive() {
			known[strconv.Itoa(p.cmd.Process.Pid)] = true
		}
	}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, exe := range exes {
		pid := filepath.Base(filepath.Dir(exe))
		program, err := os.Readlink(exe)
		if err != nil || known[pid] || !strings.HasPrefix(program, b.dir+"/") {
			continue // ended, a kernel thread, or not of this run
		}
		args, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		if err == nil && len(args) > 0 {
			out = append(out, pid+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return out, nil
}
