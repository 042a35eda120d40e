package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// shell runs `turngate rollout shell` with an input, as an operator.
func (b *bench) shell(t *testing.T, input, id string, argv ...string) (code int, out, errOut string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.binary, append([]string{"rollout", "shell", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds(), id, "--"}, argv...)...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &o, &e
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// TestAnOperatorLooksIntoARollout runs commands in the sandbox of an agent that waits for
// one of them: with pipes, and at a terminal that changes its size. A worker without
// --allow-shell runs none, and a trainer's credential is refused.
func TestAnOperatorLooksIntoARollout(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	script, err := exec.LookPath("script") // makes a terminal
	testenv.Need(t, "script", err)
	for _, sandbox := range []string{"local", "docker"} {
		t.Run(sandbox, func(t *testing.T) {
			b := newBench(t)
			b.need(t, sandbox, "command")
			w := b.worker(t, "", "--sandboxes", sandbox, "--allow-shell")
			tap := b.tap(t)
			args := []string{"--agent", "command", "--sandbox", sandbox}
			if sandbox == "docker" {
				args = append(args, "--image", testenv.Image(t))
			}
			args = append(args, filepath.Join(testenv.Root(t), "examples/tasks/hello"), "--", "sh", "-c", "echo waits; while ! [ -e hello.txt ]; do sleep 0.1; done")
			run := b.run(t, args...)
			harness.Eventually(t, "the agent", 5*time.Minute, func() bool { return strings.Contains(tap.out.String(), `"waits"`) })
			id := regexp.MustCompile(`"id":"(local-[^"]+)"`).FindStringSubmatch(tap.out.String())[1]

			code, out, errOut := b.shell(t, "some input", id, "sh", "-c", "cat; echo oops >&2; exit 7")
			if code != 7 || out != "some input" || errOut != "oops\n" {
				t.Errorf("exit status %d, %q, %q", code, out, errOut)
			}
			if code, _, errOut := b.shell(t, "", id, "no-such-command"); code != 1 || !strings.Contains(errOut, "no-such-command") {
				t.Errorf("no command: exit status %d, %s", code, errOut)
			}
			line := `tty; stty rows 33 cols 99; before=$(stty -g); "$0" rollout shell --nats "$1" --creds "$2" "$3" -- sh -c 'stty size; trap "stty size; exit 5" WINCH; echo begun; while :; do sleep 0.1; done'; echo "status $?"; test "$(stty -g)" = "$before" && echo restored`
			at := exec.CommandContext(t.Context(), script, "-qec", "sh -c '"+strings.ReplaceAll(line, "'", `'\''`)+"' "+strings.Join([]string{b.binary, b.nats.URL(), b.nats.OpsCreds(), id}, " "), "/dev/null")
			keys, err := at.StdinPipe()
			harness.Must(t, err)
			defer keys.Close()
			var seen harness.Buffer
			at.Stdout = &seen
			harness.Must(t, at.Start())
			harness.Eventually(t, "the command at a terminal", 5*time.Minute, func() bool { return strings.Contains(seen.String(), "begun") })
			tty, err := os.OpenFile(regexp.MustCompile(`/dev/pts/\d+`).FindString(seen.String()), os.O_RDWR|unix.O_NOCTTY, 0)
			harness.Must(t, err)
			defer tty.Close()
			// At once: stty would set the rows first, and the columns then.
			harness.Must(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 50}))
			_ = at.Wait() // its status is that of the last test
			for _, want := range []string{"33 99", "20 50", "status 5"} {
				if !strings.Contains(seen.String(), want) {
					t.Errorf("no %q in %q", want, seen.String())
				}
			}
			trainer := start(t, b.binary, "rollout", "shell", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), id, "--", "true")
			if code := trainer.wait(t, 5*time.Minute); code != 2 || !strings.Contains(trainer.err.String(), "that of an operator") {
				t.Errorf("as a trainer: exit status %d, %s", code, trainer.err)
			}
			if code, _, errOut := b.shell(t, "", id, "sh", "-c", "echo 'Hello, world!' > hello.txt"); code != 0 {
				t.Errorf("exit status %d: %s", code, errOut)
			}
			if code := run.wait(t, 5*time.Minute); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			r := results(t, run)[0]
			if r.Reward == nil || *r.Reward != 1 || r.Attempt != 1 || !strings.Contains(strings.Join(r.Notes, "\n"), "an operator ran commands in its sandbox") {
				t.Errorf("got %+v", r)
			}
			if code, _, errOut := b.shell(t, "", id, "true"); code != 1 || !strings.Contains(errOut, "does not run: it is done") {
				t.Errorf("after the end: exit status %d, %s", code, errOut)
			}
			var ended []schema.ShellEvent
			harness.Eventually(t, "the events", 5*time.Minute, func() bool {
				ended = shellsThatEnded(tap.out.String())
				return len(ended) == 4
			})
			if e := ended[0]; e.Number != 1 || e.Command != "sh -c cat; echo oops >&2; exit 7" || e.Exit == nil || e.Exit.Code != 7 || e.By == "" {
				t.Errorf("got %+v", e)
			}
			if e := ended[1]; e.Exit != nil || !strings.Contains(e.Fault, "no-such-command") {
				t.Errorf("got %+v", e)
			}
			w.stop(t)
			b.refusesShells(t, sandbox, args)
		})
	}
}

// refusesShells looks into a rollout of a worker without --allow-shell.
func (b *bench) refusesShells(t *testing.T, sandbox string, args []string) {
	t.Helper()
	b.worker(t, "", "--sandboxes", sandbox)
	tap := b.tap(t)
	run := b.run(t, args...)
	harness.Eventually(t, "the agent", 5*time.Minute, func() bool { return strings.Contains(tap.out.String(), `"waits"`) })
	id := regexp.MustCompile(`"id":"(local-[^"]+)"`).FindStringSubmatch(tap.out.String())[1]
	if code, _, errOut := b.shell(t, "", id, "true"); code != 1 || !strings.Contains(errOut, "was started without --allow-shell") {
		t.Errorf("exit status %d: %s", code, errOut)
	}
	run.stop(t)
}

// shellsThatEnded reads the ends of an operator's commands from the lines of a tap.
func shellsThatEnded(lines string) (out []schema.ShellEvent) {
	for line := range strings.Lines(lines) {
		var e schema.Event
		if json.Unmarshal([]byte(line), &e) == nil && e.Shell != nil && e.Shell.Ended {
			out = append(out, *e.Shell)
		}
	}
	return out
}
