package box

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// bare returns a box without a sandbox in a folder. end ends it.
func bare(t *testing.T) (c *Client, dir string, end func()) {
	t.Helper()
	dir = t.TempDir()
	worker, here := pair(t)
	served := make(chan error, 1)
	go func() {
		served <- ServeUnconfined(here, &Config{Secret: []byte("s"), Workdir: "/workspace", LifeMS: time.Hour.Milliseconds(), LostMS: time.Hour.Milliseconds(), Env: []string{"OWN=1"}}, dir)
	}()
	c, err := NewClient(t.Context(), worker, []byte("s"), "/workspace")
	if err != nil {
		t.Fatal(err)
	}
	over := false
	end = func() {
		if over {
			return
		}
		over = true
		c.Disconnect()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return c, dir, end
}

// begin starts a command of a shell.
func begin(t *testing.T, c *Client, cmd sandboxes.Cmd, script string) (sandboxes.Process, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	cmd.Args, cmd.Stdout = []string{"sh", "-c", script}, out
	p, err := c.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return p, out
}

func shell(t *testing.T, c *Client, cmd sandboxes.Cmd, script string) (schema.Exit, string) {
	t.Helper()
	p, out := begin(t, c, cmd, script)
	e, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return e, out.String()
}

func TestCommandsWithoutASandbox(t *testing.T) {
	t.Setenv("SECRET", "x")
	c, dir, _ := bare(t)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, out := shell(t, c, sandboxes.Cmd{Stdin: strings.NewReader("in"), Env: map[string]string{"A": "b"}}, `pwd -P; cat; echo " $A$OWN$SECRET"; exit 3`)
	if e.Code != 3 || out != real+"\nin b1\n" {
		t.Errorf("%+v, %q", e, out)
	}
	if e, out := shell(t, c, sandboxes.Cmd{Terminal: &sandboxes.Terminal{Size: sandboxes.TerminalSize{Rows: 33, Cols: 99}}}, `stty size; test -t 0`); e.Code != 0 || out != "33 99\r\n" {
		t.Errorf("a terminal: %+v, %q", e, out)
	}
	if e, _ := shell(t, c, sandboxes.Cmd{Timeout: 100 * time.Millisecond}, `sleep 1000`); !e.TimedOut || e.Code != 137 {
		t.Errorf("a command beyond its time: %+v", e)
	}
	var user *sandboxes.NoUserError
	if _, err := c.Start(t.Context(), sandboxes.Cmd{Args: []string{"true"}, User: "someone"}); !errors.As(err, &user) {
		t.Errorf("another user: %v", err)
	}
	var command *sandboxes.NoCommandError
	for _, cmd := range []sandboxes.Cmd{{Args: []string{"no-such-program"}}, {Args: []string{"true"}, Dir: "/etc"}} {
		if _, err := c.Start(t.Context(), cmd); !errors.As(err, &command) {
			t.Errorf("%+v: %v", cmd, err)
		}
	}
	var refused *sandboxes.RefusedError
	if err := c.Freeze(t.Context()); !errors.As(err, &refused) {
		t.Errorf("freeze: %v", err)
	}
	if _, err := c.Ports(t.Context()); !errors.As(err, &refused) {
		t.Errorf("ports: %v", err)
	}
}

// A command takes its process group with it, and the end of the box all of them.
func TestProcessGroupsEndWithoutASandbox(t *testing.T) {
	c, _, end := bare(t)
	gone := func(text string) {
		t.Helper()
		pid, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the end of a process", 5*time.Minute, func() bool {
			state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // the init of some hosts does not reap
			return syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(state), ") Z ")
		})
	}
	_, out := shell(t, c, sandboxes.Cmd{}, `sleep 71234 >/dev/null 2>&1 & echo $!`)
	gone(out)
	p, _ := begin(t, c, sandboxes.Cmd{}, `sleep 71235 & wait`)
	if err := p.Signal(t.Context(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e, err := p.Wait(); err != nil || e.Code != 137 {
		t.Errorf("a killed command: %+v, %v", e, err)
	}
	r, w := io.Pipe()
	if _, err := c.Start(t.Context(), sandboxes.Cmd{Args: []string{"sh", "-c", `sleep 71236 & echo $!; wait`}, Stdout: w}); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 20)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	end()
	gone(string(line[:n]))
}

func TestFilesWithoutASandbox(t *testing.T) {
	c, dir, _ := bare(t)
	ctx, files := t.Context(), c.Files()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(files.Write(ctx, "/workspace/a/b.txt", strings.NewReader("text"), 0o640, ""))
	if info, err := os.Stat(filepath.Join(dir, "a/b.txt")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if data, err := sandboxes.ReadFile(ctx, files, "/workspace/a/b.txt", 4); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	var large *sandboxes.TooLargeError
	if _, err := sandboxes.ReadFile(ctx, files, "/workspace/a/b.txt", 3); !errors.As(err, &large) {
		t.Errorf("a file beyond the limit: %v", err)
	}
	must(files.Mkdir(ctx, "/workspace/a/c", 0o755, ""))
	must(os.Symlink("b.txt", filepath.Join(dir, "a/link")))
	list, err := files.List(ctx, "/workspace/a")
	if err != nil || len(list) != 3 || list[0].Name != "b.txt" || !list[1].Mode.IsDir() || list[2].Mode&fs.ModeSymlink == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	must(syscall.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600))
	if _, err := sandboxes.ReadFile(ctx, files, "/workspace/a/pipe", 10); err == nil {
		t.Error("a pipe was read")
	}
	var packed bytes.Buffer
	must(files.TarOut(ctx, "/workspace/a", &packed, sandboxes.TarOptions{Limit: 1 << 20, Links: true}))
	must(files.TarIn(ctx, "/workspace/copy", bytes.NewReader(packed.Bytes()), ""))
	if data, err := os.ReadFile(filepath.Join(dir, "copy/link")); err != nil || string(data) != "text" {
		t.Errorf("the copy: %q, %v", data, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "copy/pipe")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pipe in the copy: %v", err)
	}
	packed.Reset()
	must(files.TarOut(ctx, "/workspace/a/b.txt", &packed, sandboxes.TarOptions{Limit: 1 << 20}))
	if h, err := tar.NewReader(&packed).Next(); err != nil || h.Name != "b.txt" || h.Size != 4 {
		t.Errorf("%+v, %v", h, err)
	}
	if err := files.TarOut(ctx, "/workspace", io.Discard, sandboxes.TarOptions{Limit: 2}); !errors.As(err, &large) {
		t.Errorf("a tree beyond the limit: %v", err)
	}
	must(files.Remove(ctx, "/workspace/a"))
	if _, err := files.Stat(ctx, "/workspace/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a removed folder: %v", err)
	}
}

// No operation on files leaves the folder.
func TestFilesWithoutASandboxStayInTheFolder(t *testing.T) {
	c, dir, _ := bare(t)
	ctx, files, outside := t.Context(), c.Files(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(outside, "secret"), "/workspace/out/secret", "/workspace/../etc/passwd", "../secret", "/workspaces/x"} {
		if data, err := sandboxes.ReadFile(ctx, files, path, 1<<20); err == nil {
			t.Errorf("read %s: %q", path, data)
		}
		if err := files.Write(ctx, path, strings.NewReader(""), 0o600, ""); err == nil {
			t.Errorf("wrote %s", path)
		}
	}
	for _, h := range []tar.Header{
		{Name: "../new", Typeflag: tar.TypeReg}, {Name: "out/new", Typeflag: tar.TypeReg}, {Name: "/new", Typeflag: tar.TypeReg}, {Name: "out/dir", Typeflag: tar.TypeDir}, {Name: "dev", Typeflag: tar.TypeChar},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
			t.Fatal(err)
		}
		if err := files.TarIn(ctx, "/workspace", &b, ""); err == nil {
			t.Errorf("unpacked %+v", h)
		}
	}
	list, err := os.ReadDir(outside)
	if err != nil || !slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == "secret" }) || len(list) != 1 {
		t.Errorf("outside: %v, %v", list, err)
	}
}
