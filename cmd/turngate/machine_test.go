package main_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// workshop is a server with machines, and a person behind a proxy.
type workshop struct {
	nats   testenv.NATS
	proxy  *testenv.Proxy
	binary string
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	n := testenv.StartNATS(t)
	return &workshop{n, testenv.NewProxy(t, strings.TrimPrefix(n.URL(), "nats://")), testenv.Binary(t)}
}

// serve starts a machine, which ends with the test.
func (w *workshop) serve(t *testing.T, name string, args ...string) (state string) {
	t.Helper()
	harness.Must(t, w.nats.AddMachine(name, ""))
	harness.Must(t, w.nats.Reload())
	state = t.TempDir()
	cmd := exec.Command(w.binary, append([]string{"machine", "serve", "--nats", w.nats.URL(), "--creds", w.nats.MachineCreds(name), "--state", state}, args...)...)
	var errs harness.Buffer
	cmd.Stderr = &errs
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	harness.Eventually(t, "the machine", 5*time.Minute, func() bool { return strings.Contains(errs.String(), "the machine is ready") })
	return state
}

// workspace makes a folder for people. It does not belong to root.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		harness.Must(t, os.Chown(dir, 1000, 1000))
	}
	return dir
}

// command is a command of the person.
func (w *workshop) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, w.binary, append([]string{"machine", verb, "--nats", w.proxy.URL(), "--creds", w.nats.AdminCreds()}, args...)...)
}

func (w *workshop) run(t *testing.T, stdin, verb string, args ...string) outcome {
	t.Helper()
	cmd := w.command(t.Context(), verb, args...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	_ = cmd.Run()
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// A person runs commands in the workspace of a machine, through a cut of the connection,
// and copies files to it and back. Nothing outside the workspace is reached, and nothing is
// left of a command that the person interrupts.
func TestAPersonWorksOnAMachine(t *testing.T) {
	testenv.Slow(t)
	w := newWorkshop(t)
	dir, here, outside := workspace(t), t.TempDir(), t.TempDir()
	harness.Must(t, os.Chmod(outside, 0o777))
	state := w.serve(t, "m1", "--workspace", dir)

	got := w.run(t, "in\n", "exec", "m1", "--", "sh", "-c", `read -r x; echo "out $x"; echo err >&2; pwd; head -c 3000000 /dev/zero | tr '\0' x >large; exit 7`)
	if got.code != 7 || got.out != "out in\n/workspace\n" || got.errOut != "err\n" {
		t.Errorf("exec: %+v", got)
	}
	if got := w.run(t, "", "exec", "m1", "--", "cat", "large"); got.code != 0 || got.out != strings.Repeat("x", 3_000_000) {
		t.Errorf("a file of the first command: exit status %d, %d bytes, %s", got.code, len(got.out), got.errOut)
	}

	harness.Must(t, os.MkdirAll(filepath.Join(here, "src/sub"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(here, "src/sub/a.txt"), []byte("from here"), 0o600))
	harness.Must(t, os.Symlink("/etc/passwd", filepath.Join(here, "src/link")))
	if got := w.run(t, "", "cp", filepath.Join(here, "src"), "m1:."); got.code != 0 || !strings.Contains(got.errOut, "not copied: 1 link") {
		t.Errorf("cp: %+v", got)
	}
	at := filepath.Join(dir, "src/sub/a.txt")
	if data, err := os.ReadFile(at); err != nil || string(data) != "from here" {
		t.Errorf("on the machine: %q, %v", data, err)
	}
	var made, folder syscall.Stat_t
	harness.Must(t, syscall.Stat(at, &made))
	harness.Must(t, syscall.Stat(dir, &folder))
	if made.Uid != folder.Uid || made.Gid != folder.Gid {
		t.Errorf("the copy belongs to %d:%d, the workspace to %d:%d", made.Uid, made.Gid, folder.Uid, folder.Gid)
	}
	if got := w.run(t, "", "cp", "m1:/workspace/src", filepath.Join(here, "back")); got.code != 0 {
		t.Errorf("cp back: %+v", got)
	}
	if data, err := os.ReadFile(filepath.Join(here, "back/sub/a.txt")); err != nil || string(data) != "from here" {
		t.Errorf("back: %q, %v", data, err)
	}

	harness.Must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	w.run(t, "", "cp", filepath.Join(here, "src/sub/a.txt"), "m1:out/a.txt")
	w.run(t, "", "exec", "m1", "--", "sh", "-c", "echo x >"+filepath.Join(outside, "b.txt"))
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("outside: %v, %v", list, err)
	}

	cmd := w.command(t.Context(), "exec", "m1", "--", "sh", "-c", `echo run >>runs; echo up; read -r x; cat runs; echo "$x"`)
	keys, err := cmd.StdinPipe()
	harness.Must(t, err)
	var out harness.Buffer
	cmd.Stdout = &out
	harness.Must(t, cmd.Start())
	harness.Eventually(t, "the command", 5*time.Minute, func() bool { return out.String() == "up\n" })
	w.proxy.Set(true, true, 0)
	w.proxy.Cut()
	_, err = io.WriteString(keys, "go on\n")
	harness.Must(t, err)
	w.proxy.Heal()
	if err := cmd.Wait(); err != nil || out.String() != "up\nrun\ngo on\n" {
		t.Errorf("after a cut: %q, %v", out.String(), err)
	}

	cmd = w.command(t.Context(), "exec", "m1", "--", "sh", "-c", "echo begun; sleep 70123")
	var begun harness.Buffer
	cmd.Stdout = &begun
	harness.Must(t, cmd.Start())
	harness.Eventually(t, "the command", 5*time.Minute, func() bool { return begun.String() == "begun\n" })
	harness.Must(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("an interrupted command ends with %d", code)
	}
	harness.Eventually(t, "no sandboxes", 5*time.Minute, func() bool {
		left, err := filepath.Glob(filepath.Join(state, "state/local/*"))
		return err == nil && len(left) == 0
	})
}

// With the owner's --unconfined commands run without a sandbox, in the folder itself.
func TestAnUnconfinedMachine(t *testing.T) {
	testenv.Slow(t)
	w := newWorkshop(t)
	dir, here := t.TempDir(), t.TempDir()
	real, err := filepath.EvalSymlinks(dir)
	harness.Must(t, err)
	w.serve(t, "m1", "--workspace", dir, "--unconfined")
	got := w.run(t, "in", "exec", "m1", "--", "sh", "-c", "pwd -P; cat; echo made >a.txt; exit 7")
	if got.code != 7 || got.out != real+"\nin" {
		t.Errorf("exec: %+v", got)
	}
	if got := w.run(t, "", "cp", "m1:a.txt", here); got.code != 0 {
		t.Errorf("cp: %+v", got)
	}
	if data, err := os.ReadFile(filepath.Join(here, "a.txt")); err != nil || string(data) != "made\n" {
		t.Errorf("%q, %v", data, err)
	}
	if got := w.run(t, "", "cp", here, "m1:sub/copy"); got.code != 0 {
		t.Errorf("cp: %+v", got)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "sub/copy/a.txt")); err != nil || string(data) != "made\n" {
		t.Errorf("%q, %v", data, err)
	}
	cmd := w.command(t.Context(), "exec", "m1", "--", "sh", "-c", "echo $$; sleep 70234")
	var out harness.Buffer
	cmd.Stdout = &out
	harness.Must(t, cmd.Start())
	harness.Eventually(t, "the command", 5*time.Minute, func() bool { return strings.HasSuffix(out.String(), "\n") })
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	harness.Must(t, err)
	harness.Must(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	harness.Eventually(t, "the end of an interrupted command", 5*time.Minute, func() bool {
		state, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // the init of some hosts does not reap
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && strings.Contains(string(state), ") Z ")
	})
	if got = turngate(t, w.binary, "machine", "ls", "--nats", w.nats.URL(), "--creds", w.nats.AdminCreds()); !strings.Contains(got.out, "unconfined") {
		t.Errorf("a list that hides it: %+v", got)
	}
	got = turngate(t, w.binary, "machine", "serve", "--nats", w.nats.URL(), "--creds", w.nats.MachineCreds("m1"), "--unconfined")
	if got.code != 2 || !strings.Contains(got.errOut, "--unconfined needs --workspace") {
		t.Errorf("without a folder: %+v", got)
	}
}

// A person reaches a port of a command on a machine, until the command ends.
func TestAPortOfACommandOnAMachine(t *testing.T) {
	w := newWorkshop(t)
	folder := workspace(t)
	w.serve(t, "m1", "--workspace", folder)
	const port = "14222"
	cmd := w.command(t.Context(), "exec", "--listen", "0:"+port, "m1", "--", "/.turngate/turngate", "nats", "--port", port, "--state", "/tmp/nats")
	var errs harness.Buffer
	cmd.Stderr = &errs
	harness.Must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	listens := regexp.MustCompile(`(127\.0\.0\.1:[0-9]+) is port ` + port + ` of the sandbox, until the command ends`)
	harness.Eventually(t, "the forward", 5*time.Minute, func() bool { return listens.MatchString(errs.String()) })
	address, hello := listens.FindStringSubmatch(errs.String())[1], make([]byte, 5)
	harness.Eventually(t, "an answer of the server", 5*time.Minute, func() bool { // it may not listen yet
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = io.ReadFull(conn, hello)
		return err == nil
	})
	if string(hello) != "INFO " {
		t.Errorf("the server says %q", hello)
	}
	harness.Must(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit status %d, %s", code, &errs)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	defer taken.Close()
	_, there, _ := strings.Cut(taken.Addr().String(), ":")
	if got := w.run(t, "", "exec", "--listen", there+":80", "m1", "--", "touch", "ran"); got.code != 1 || !strings.Contains(got.errOut, "--listen: listen tcp") {
		t.Errorf("a port that is taken: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(folder, "ran")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a command ran without its port: %v", err)
	}
}

// A machine without a workspace, with one of root, and one that is not there are named.
func TestAMachineWithoutAWorkspace(t *testing.T) {
	testenv.Slow(t)
	w := newWorkshop(t)
	w.serve(t, "m2")
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no workspace": {[]string{"exec", "m2", "--", "true"}, 1, "on the machine m2: its owner started it without --workspace"},
		"not there":    {[]string{"exec", "m3", "--", "true"}, 1, "the machine m3 is not there"},
		"no command":   {[]string{"exec", "m2"}, 2, "after -- the command"},
		"a bad port":   {[]string{"exec", "m2", "--listen", "x", "--", "true"}, 2, "--listen"},
		"a bad name":   {[]string{"shell", "a.b"}, 2, `"a.b"`},
		"two machines": {[]string{"cp", "m1:a", "m2:b"}, 2, "want one path of the form NAME:PATH"},
		"outside":      {[]string{"cp", "m2:/etc/passwd", "."}, 2, "want a path in the workspace"},
		"above":        {[]string{"cp", "m2:../x", "."}, 2, "want a path in the workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.run(t, "", tt.args[0], tt.args[1:]...); got.code != tt.code || !strings.Contains(got.errOut, tt.says) {
				t.Errorf("got %+v", got)
			}
		})
	}
	if os.Geteuid() == 0 {
		got := turngate(t, w.binary, "machine", "serve", "--nats", w.nats.URL(), "--creds", w.nats.MachineCreds("m2"), "--state", t.TempDir(), "--workspace", t.TempDir())
		if got.code != 1 || !strings.Contains(got.errOut, "belongs to the user or the group root") {
			t.Errorf("a workspace of root: %+v", got)
		}
	}
}

// A shell on a machine has the person's terminal. A line about a failed connection to a
// port of a command begins and ends in the first column of the raw terminal.
func TestAShellOnAMachine(t *testing.T) {
	script, err := exec.LookPath("script") // makes a terminal
	testenv.Need(t, "script", err)
	w := newWorkshop(t)
	w.serve(t, "m1", "--workspace", workspace(t))
	shell := w.command(t.Context(), "shell", "m1")
	ports := w.command(t.Context(), "exec", "--listen", "0:9", "m1", "--", "sh", "-c", "'echo up; read x'")
	line := `stty rows 33 cols 99; before=$(stty -g); ` + strings.Join(shell.Args, " ") + `; echo "status $?"; test "$(stty -g)" = "$before" && echo restored; ` + strings.Join(ports.Args, " ")
	cmd := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
	keys, err := cmd.StdinPipe()
	harness.Must(t, err)
	var out harness.Buffer
	cmd.Stdout = &out
	harness.Must(t, cmd.Start())
	harness.Eventually(t, "the prompt", 5*time.Minute, func() bool { return strings.Contains(out.String(), "# ") })
	_, err = io.WriteString(keys, "stty size; exit\r")
	harness.Must(t, err)
	up := regexp.MustCompile(`(?s)(127\.0\.0\.1:[0-9]+) is port 9 of the sandbox.*up\r\n`)
	harness.Eventually(t, "the command with a port", 5*time.Minute, func() bool { return up.MatchString(out.String()) })
	conn, err := net.Dial("tcp", up.FindStringSubmatch(out.String())[1])
	harness.Must(t, err)
	_, _ = io.Copy(io.Discard, conn) // nothing listens on the port
	conn.Close()
	harness.Eventually(t, "the line about the connection", 5*time.Minute, func() bool { return strings.Contains(out.String(), "port 9: ") })
	if !regexp.MustCompile(`\r\nport 9: [^\r\n]*\r\n`).MatchString(out.String()) {
		t.Errorf("the line about the connection is in %q", out.String())
	}
	_, err = io.WriteString(keys, "\r")
	harness.Must(t, err)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"33 99", "status 0", "restored"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}
