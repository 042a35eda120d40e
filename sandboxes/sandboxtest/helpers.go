package sandboxtest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// Create makes a sandbox that ends with the test.
func Create(t *testing.T, b sandboxes.Backend, s sandboxes.Spec) sandboxes.Sandbox {
	t.Helper()
	sb, err := b.Create(t.Context(), s)
	harness.Must(t, err)
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	return sb
}

// Output returns the output of a shell script and its errors.
func Output(t *testing.T, sb sandboxes.Sandbox, script string) string {
	t.Helper()
	var out strings.Builder
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out, Timeout: time.Minute})
	harness.Must(t, err)
	_, err = p.Wait()
	harness.Must(t, err)
	return out.String()
}

// RefusesByName checks that a backend of local sandboxes on other hosts refuses settings
// that these lack by the names of their fields, before it makes a sandbox.
func RefusesByName(t *testing.T, b sandboxes.Backend) {
	t.Helper()
	for field, s := range map[string]sandboxes.Spec{
		"sandbox.network":  {Network: "open"},
		"sandbox.image":    {Image: "debian:12"},
		"sandbox.gpus":     {GPUs: 1},
		"sandbox.services": {Services: []sandboxes.Service{{Name: "db"}}},
	} {
		_, err := b.Create(t.Context(), s)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != field || strings.Contains(no.Reason, "local") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Sleeps is a command that prints "up" and lives until its sandbox ends. Its argument
// marks it.
func Sleeps(mark string) sandboxes.Cmd {
	return sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `echo up; setsid sleep 3600 & while :; do sleep 1; done`, mark}}
}

// Mark returns an argument for Sleeps that no other test of this host has.
func Mark(t testing.TB) string {
	return strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()) + "-" + strconv.Itoa(os.Getpid())
}

// Up starts Sleeps and waits for its first line.
func Up(t testing.TB, sb sandboxes.Sandbox, mark string) sandboxes.Process {
	t.Helper()
	c := Sleeps(mark)
	out, in, err := os.Pipe()
	harness.Must(t, err)
	t.Cleanup(func() { in.Close(); out.Close() })
	c.Stdout = in
	p, err := sb.Start(t.Context(), c)
	harness.Must(t, err)
	_, err = bufio.NewReader(out).ReadString('\n')
	harness.Must(t, err)
	return p
}

// Work is a worker with one sandbox, in which Sleeps runs, until it is killed. It returns
// only an error.
func Work(b sandboxes.Backend, s sandboxes.Spec, mark string) error {
	sb, err := b.Create(context.Background(), s)
	if err != nil {
		return err
	}
	c := Sleeps(mark)
	c.Stdout = os.Stdout
	p, err := sb.Start(context.Background(), c)
	if err == nil {
		_, err = p.Wait()
	}
	return cmp.Or(err, errors.New("the command has ended"))
}

// Processes returns the processes of this host with the text in their argv. An argument ends
// with a zero byte.
func Processes(text string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		data, err := os.ReadFile(f)
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err == nil && perr == nil && strings.Contains(string(data), text) && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
