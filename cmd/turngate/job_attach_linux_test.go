package main_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// gatedEngine is a model server that answers after open is called.
func gatedEngine(t *testing.T) (url string, open func()) {
	t.Helper()
	opened := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/models") {
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // the server notices that the client leaves
		select {
		case <-opened:
			_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(srv.Close)
	open = sync.OnceFunc(func() { close(opened) })
	t.Cleanup(open)
	return srv.URL, open
}

// screen is a terminal for a session with one command.
type screen struct {
	ours *os.File
	cmd  *exec.Cmd
	seen harness.Buffer
}

// onScreen starts a shell command in a session of its own, at a terminal.
func onScreen(t *testing.T, dir, command string) *screen {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	harness.Must(t, err)
	s := &screen{ours: os.NewFile(uintptr(fd), "screen")}
	t.Cleanup(func() { s.ours.Close() })
	harness.Must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	harness.Must(t, err)
	user, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	harness.Must(t, err)
	defer user.Close()
	s.cmd = exec.Command("sh", "-c", command)
	s.cmd.Dir, s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = dir, user, user, user
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	hangups := make(chan os.Signal, 1) // a command ignores the signals that this process ignores, as under nohup
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	harness.Must(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	go func() { _, _ = io.Copy(&s.seen, s.ours) }()
	return s
}

// hangUp ends the terminal, and waits for the end of its session.
func (s *screen) hangUp(t *testing.T) {
	t.Helper()
	harness.Must(t, s.ours.Close())
	late := time.AfterFunc(5*time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	if err := s.cmd.Wait(); s.cmd.ProcessState == nil || s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGHUP {
		t.Errorf("the session ended with %v", err)
	}
}

// TestAJobSurvivesItsTerminal: Ctrl-C and the end of the terminal do not end a detached job.
// Others follow it, leave it, pause it and see that its process was killed; resumed, it ends
// with their exit status.
func TestAJobSurvivesItsTerminal(t *testing.T) {
	t.Parallel()
	binary, dir := testenv.Binary(t), t.TempDir()
	url, open := gatedEngine(t)
	writeFile(t, filepath.Join(dir, "task/instruction.md"), "Do it.")
	writeFile(t, filepath.Join(dir, "task/tests/test.sh"), "echo 1 > /logs/verifier/reward.txt\n")
	job := filepath.Join(dir, "job")
	s := onScreen(t, dir, binary+" run --detach --sandbox local --agent mini --trainer upstream:"+url+" -n 3 -j 2 --out job task && trap : INT && echo the shell && while :; do sleep 600; done")
	harness.Eventually(t, "the end of the command", 5*time.Minute, func() bool { return strings.Contains(s.seen.String(), "the shell") })
	told := regexp.MustCompile(`runs as process (\d+), with its output in job/output\.log\r\nfollow it with: turngate job attach job\r\n`).FindStringSubmatch(s.seen.String())
	if told == nil || !strings.Contains(s.seen.String(), "\njob\r\n") {
		t.Fatalf("%q", s.seen.String())
	}
	pid, err := strconv.Atoi(told[1])
	harness.Must(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	if info, err := os.Stat(filepath.Join(job, "output.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	_, err = s.ours.WriteString("\x03")
	harness.Must(t, err)
	s.hangUp(t)
	harness.Must(t, syscall.Kill(pid, syscall.SIGHUP)) // as a program that ends a user's processes sends it

	one, two := launch(t, binary, "job", "attach", job), launch(t, binary, "job", "attach", job)
	for _, a := range []*running{one, two} {
		harness.Eventually(t, "the trials that run", 5*time.Minute, func() bool { return strings.Count(a.err.String(), ": phase agent") == 2 })
	}
	harness.Must(t, one.cmd.Process.Signal(syscall.SIGINT))
	if code := one.wait(t); code != 130 || !strings.HasSuffix(one.err.String(), "detached; the job goes on: turngate job attach "+job+"\n") {
		t.Errorf("exit status %d: %s", code, one.err.String())
	}
	if got := turngate(t, binary, "job", "pause", job); got.code != 0 || !strings.HasSuffix(got.out, ": paused\n") {
		t.Errorf("%+v", got)
	}
	harness.Eventually(t, "the pause", 5*time.Minute, func() bool { return strings.Contains(two.err.String(), "the job is paused") })
	if got := turngate(t, binary, "job", "resume", job); got.code != 0 || !strings.HasSuffix(got.out, ": running\n") {
		t.Errorf("%+v", got)
	}

	harness.Must(t, syscall.Kill(pid, syscall.SIGKILL))
	again := launch(t, binary, "job", "attach", job)
	for _, a := range []*running{two, again} {
		if code := a.wait(t); code != 1 || !strings.Contains(a.err.String(), "go on with: turngate run --resume "+job+"\n") || !strings.Contains(a.err.String(), "its process died") {
			t.Errorf("exit status %d: %s", code, a.err.String())
		}
	}

	open()
	resumed := turngate(t, binary, "run", "--detach", "--resume", job)
	if resumed.code != 0 || resumed.out != job+"\n" {
		t.Fatalf("%+v", resumed)
	}
	for range 2 { // while it runs or after it, and after it
		end := turngate(t, binary, "job", "attach", "-o", "json", job)
		if list := results(t, end); end.code != 0 || len(list) != 3 || list[2].Reward == nil || *list[2].Reward != 1 || !strings.Contains(end.errOut, "3 of 3 ended, mean reward 1") {
			t.Errorf("%+v", end)
		}
	}
}

// TestADetachedJobThatCannotStart: the command has its errors and its exit status.
func TestADetachedJobThatCannotStart(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	job := filepath.Join(t.TempDir(), "job")
	if got := turngate(t, binary, "run", "--detach", "--agent", "oracle", "--sandbox", "local", "--out", job, "/no/such/task"); got.code != 2 || got.out != "" || !strings.Contains(got.errOut, "/no/such/task") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "run", "--detach", "--agent", "nop", "--nats", "nats://127.0.0.1:1", "--creds", "/no/such/file", "--out", job, "examples/tasks/hello"); got.code == 0 || got.out != "" || !strings.Contains(got.errOut, "/no/such/file") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(job, "output.log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if got := turngate(t, binary, "job", "attach", t.TempDir()); got.code != 1 || !strings.Contains(got.errOut, "not the folder of a job") {
		t.Errorf("%+v", got)
	}
}

// TestADetachedJobPrintsItsFolder as it is to stdout, for scripts, and as one word of a shell
// in the command that follows it.
func TestADetachedJobPrintsItsFolder(t *testing.T) {
	testenv.Slow(t)
	binary, job := testenv.Binary(t), filepath.Join(t.TempDir(), "a job")
	got := turngate(t, binary, "run", "--detach", "--agent", "oracle", "--sandbox", "local", "--out", job, filepath.Join(testenv.Root(t), "examples", "tasks", "hello"))
	if got.code != 0 || got.out != job+"\n" || !strings.HasSuffix(got.errOut, "\nfollow it with: turngate job attach '"+job+"'\n") {
		t.Errorf("%+v", got)
	}
	if end := turngate(t, binary, "job", "attach", job); end.code != 0 {
		t.Errorf("%+v", end)
	}
}
