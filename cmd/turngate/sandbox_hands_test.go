package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// hands runs commands with a temporary folder of their own, in which their sandboxes are
// found.
type hands struct {
	binary, temp string
}

func newHands(t *testing.T) *hands {
	t.Helper()
	h := &hands{testenv.Binary(t), t.TempDir()}
	t.Cleanup(func() {
		for _, pid := range h.keepers(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return h
}

func (h *hands) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.binary, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+h.temp, "TURNGATE_RUNS="+filepath.Join(h.temp, "runs"))
	return cmd
}

// run runs a command to its end.
func (h *hands) run(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	cmd := h.command(t.Context(), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	_ = cmd.Run()
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// keepers returns the keepers of these commands.
func (h *hands) keepers(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	harness.Must(t, err)
	for _, file := range all {
		env, _ := os.ReadFile(file) // it fails if the process has ended
		argv, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if slices.Contains(strings.Split(string(env), "\x00"), "TMPDIR="+h.temp) && strings.Contains(string(argv), "\x00keeper\x00") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			harness.Must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// children returns the processes that a process started: the boxes of local sandboxes.
func children(t *testing.T, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	harness.Must(t, err)
	var all []string
	for _, file := range files {
		data, _ := os.ReadFile(file)
		all = append(all, strings.Fields(string(data))...)
	}
	return all
}

// nothingLeft waits until no keeper, box, container or folder is left.
func (h *hands) nothingLeft(t *testing.T, boxes ...string) {
	t.Helper()
	harness.Eventually(t, "the end of the keeper, of its sandboxes and its folder", 5*time.Minute, func() bool {
		for _, pid := range boxes {
			if data, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !bytes.Contains(data, []byte(") Z ")) {
				return false
			}
		}
		return len(h.folders(t)) == 0 && len(h.keepers(t)) == 0
	})
}

// folders returns the folders of keepers.
func (h *hands) folders(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(h.temp, "turngate-*", "*"))
	harness.Must(t, err)
	return slices.DeleteFunc(left, func(path string) bool { return filepath.Base(path) == "lock" })
}

type listed struct {
	ID      string `json:"id"`
	Task    string `json:"task"`
	State   string `json:"state"`
	Rollout string `json:"rollout"`
	Backend string `json:"backend"`
}

func (h *hands) list(t *testing.T) (all []listed) {
	t.Helper()
	got := h.run(t, "", "sandbox", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &all); err != nil || got.code != 0 {
		t.Fatalf("%v: %+v", err, got)
	}
	return all
}

// containers returns the containers of a rollout.
func containers(t *testing.T, rollout string) string {
	t.Helper()
	out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=turngate.rollout="+rollout).CombinedOutput()
	if err != nil {
		t.Fatalf("docker ps: %v: %s", err, out)
	}
	return string(out)
}

var entered = regexp.MustCompile(`turngate sandbox exec ([a-z0-9]{8})`) //nolint:gochecknoglobals // a constant

func TestASandboxIsKept(t *testing.T) {
	testenv.Slow(t)
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for backend, args := range map[string][]string{
		"local":  {hello, "--sandbox", "local"},
		"docker": {"", "--sandbox", "docker"},
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "docker" {
				testenv.Need(t, "docker", exec.Command("docker", "info").Run())
				args[0] = testenv.Image(t)
			}
			h := newHands(t)
			got := h.run(t, "typed", append(append([]string{"sandbox", "run"}, args...), "--keep", "--", "sh", "-c", "cat >said; echo made; exit 4")...)
			id := entered.FindStringSubmatch(got.errOut)
			if got.code != 4 || got.out != "made\n" || id == nil {
				t.Fatalf("%+v", got)
			}
			all := h.list(t)
			if len(all) != 1 || all[0].ID != id[1] || all[0].State != "kept" || all[0].Backend != backend {
				t.Fatalf("%+v", all)
			}
			boxes := children(t, h.keepers(t)[0])
			for name, tt := range map[string]struct {
				stdin string
				args  []string
				want  outcome
			}{
				"files of before": {"", []string{"sh", "-c", "cat said; echo wrong >&2; exit 9"}, outcome{9, "typed", "wrong\n"}},
				"input":           {"a\x00\r\n", []string{"cat"}, outcome{0, "a\x00\r\n", ""}},
				"a shell":         {"echo $((6*7)); false\n", nil, outcome{0, "42\n", ""}},
			} {
				run := append([]string{"sandbox", "exec", all[0].ID[:5]}, append([]string{"--"}, tt.args...)...)
				if tt.args == nil {
					run = run[:3]
				}
				if got := h.run(t, tt.stdin, run...); got != tt.want {
					t.Errorf("%s: %+v", name, got)
				}
			}
			h.copies(t, id[1])
			h.forwards(t, id[1])
			if got := h.run(t, "", "sandbox", "rm", id[1]); got.code != 0 || got.out != id[1]+"\n" {
				t.Errorf("%+v", got)
			}
			h.nothingLeft(t, boxes...)
			if backend == "docker" && containers(t, all[0].Rollout) != "" {
				t.Error("its container is left")
			}
		})
	}
}

// copies copies a file and a folder into a sandbox and out of it.
func (h *hands) copies(t *testing.T, id string) {
	t.Helper()
	from := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(from, "tree", "deep"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(from, "tree", "deep", "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755))
	harness.Must(t, os.Symlink("/etc/passwd", filepath.Join(from, "tree", "link")))
	got := h.run(t, "", "sandbox", "cp", filepath.Join(from, "tree"), id+":/tmp")
	if got.code != 0 || !strings.Contains(got.errOut, "1 link") {
		t.Errorf("%+v", got)
	}
	harness.Must(t, os.Symlink("tree", filepath.Join(from, "linked")))
	if got := h.run(t, "", "sandbox", "cp", filepath.Join(from, "linked"), id+":/tmp"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "cp", filepath.Join(from, "tree", "deep", "run.sh"), id+":/tmp/tree/other/name"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "exec", id, "--", "sh", "-c", "/tmp/linked/deep/run.sh && /tmp/tree/other/name; ls /tmp/tree"); got.out != "ran\nran\ndeep\nother\n" {
		t.Errorf("%+v", got)
	}
	to := t.TempDir()
	for _, args := range [][]string{{id + ":/tmp/tree", to}, {id + ":/tmp/tree/deep", filepath.Join(to, "named")}, {id + ":/tmp/tree/other/name", filepath.Join(to, "file")}} {
		if got := h.run(t, "", append([]string{"sandbox", "cp"}, args...)...); got.code != 0 {
			t.Errorf("%v: %+v", args, got)
		}
	}
	for _, name := range []string{"tree/deep/run.sh", "tree/other/name", "named/run.sh", "file"} {
		if data, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(data) != "#!/bin/sh\necho ran\n" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if got := h.run(t, "", "sandbox", "cp", id+":/dev/null", to); got.code != 1 || !strings.Contains(got.errOut, "neither a file nor a folder") {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "cp", id+":/no/such/file", to); got.code != 1 || !strings.Contains(got.errOut, "/no/such/file") {
		t.Errorf("%+v", got)
	}
}

// forwards reaches a server in a sandbox from this host.
func (h *hands) forwards(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const port = "14222"
	server := h.command(ctx, "sandbox", "exec", id, "--", "/.turngate/turngate", "nats", "--port", port, "--state", "/tmp/nats")
	harness.Must(t, server.Start())
	defer func() { cancel(); _ = server.Wait() }()
	harness.Eventually(t, "a port of the sandbox", 5*time.Minute, func() bool {
		return strings.Contains(h.run(t, "", "sandbox", "ports", id).out, port+" ")
	})
	var out harness.Buffer
	forward := h.command(ctx, "sandbox", "ports", id, "--listen", "0:"+port)
	forward.Stdout = &out
	harness.Must(t, forward.Start())
	defer func() { cancel(); _ = forward.Wait() }()
	harness.Eventually(t, "the forward", 5*time.Minute, func() bool { return strings.Contains(out.String(), "\n") })
	address, _, _ := strings.Cut(out.String(), " ")
	conn, err := net.Dial("tcp", address)
	harness.Must(t, err)
	defer conn.Close()
	hello := make([]byte, 5)
	if _, err := io.ReadFull(conn, hello); err != nil || string(hello) != "INFO " {
		t.Errorf("%q, %v", hello, err)
	}
}

// A kept sandbox ends at its deadline, with its keeper, and when the keeper is killed; a
// later command removes the folder of a killed keeper.
func TestAKeptSandboxEnds(t *testing.T) {
	testenv.Slow(t)
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for name, end := range map[string]func(t *testing.T, h *hands, keeper int){
		"at its deadline": nil,
		"by SIGTERM":      func(_ *testing.T, _ *hands, keeper int) { _ = syscall.Kill(keeper, syscall.SIGTERM) },
		"by SIGKILL": func(t *testing.T, h *hands, keeper int) {
			_ = syscall.Kill(keeper, syscall.SIGKILL)
			// Its lock may outlive its name in the list of processes: a command then leaves
			// the folder to a later one.
			harness.Eventually(t, "the end of the keeper and of its folder", 5*time.Minute, func() bool {
				return len(h.list(t)) == 0 && len(h.keepers(t)) == 0 && len(h.folders(t)) == 0
			})
		},
		"by rm --all": func(t *testing.T, h *hands, _ int) {
			if got := h.run(t, "", "sandbox", "rm", "--older", "1h"); got.code != 0 || got.out != "" {
				t.Errorf("%+v", got)
			}
			if got := h.run(t, "", "sandbox", "rm", "--all"); got.code != 0 || strings.Count(got.out, "\n") != 1 {
				t.Errorf("%+v", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHands(t)
			keep := "--keep"
			if end == nil {
				keep = "--keep=1s"
			}
			got := h.run(t, "", "sandbox", "run", hello, "--sandbox", "local", keep, "--", "true")
			if got.code != 0 || !entered.MatchString(got.errOut) {
				t.Fatalf("%+v", got)
			}
			var boxes []string
			if end != nil {
				keeper := h.keepers(t)[0]
				if boxes = children(t, keeper); len(boxes) == 0 {
					t.Error("the keeper has no box")
				}
				end(t, h, keeper)
			}
			h.nothingLeft(t, boxes...)
		})
	}
}

// A command that is killed leaves no keeper; until then others see its sandbox, but do not
// remove it.
func TestTheSandboxOfACommandThatRuns(t *testing.T) {
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	h := newHands(t)
	cmd := h.command(context.Background(), "sandbox", "run", hello, "--sandbox", "local", "--keep", "--", "sh", "-c", "echo begun; sleep 1000")
	var out harness.Buffer
	cmd.Stdout = &out
	harness.Must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	harness.Eventually(t, "the command in the sandbox", 5*time.Minute, func() bool { return out.String() != "" })
	all := h.list(t)
	if len(all) != 1 || all[0].State != "running" {
		t.Fatalf("%+v", all)
	}
	if got := h.run(t, "", "sandbox", "exec", all[0].ID, "--", "echo", "seen"); got.out != "seen\n" {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "rm", all[0].ID); got.code != 1 || !strings.Contains(got.errOut, "runs") {
		t.Errorf("%+v", got)
	}
	boxes := children(t, h.keepers(t)[0])
	harness.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	h.nothingLeft(t, boxes...)
}

// A keeper ignores the end of the terminal under nohup, and it alone tells its errors.
func TestACommandInAKeeperEnds(t *testing.T) {
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	h := newHands(t)
	kept := []string{"sandbox", "run", hello, "--sandbox", "local", "--keep"}
	cmd := h.command(t.Context(), append(slices.Clone(kept), "--", "sh", "-c", `echo begun; read -r line; echo "got $line"`)...)
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", h.binary}, cmd.Args[1:]...)
	sh, err := exec.LookPath("sh")
	harness.Must(t, err)
	cmd.Path = sh
	var out harness.Buffer
	cmd.Stdout = &out
	keys, err := cmd.StdinPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	harness.Eventually(t, "the command in the sandbox", 5*time.Minute, func() bool { return strings.Contains(out.String(), "begun") })
	harness.Must(t, cmd.Process.Signal(syscall.SIGHUP))
	_, err = io.WriteString(keys, "keys\n")
	harness.Must(t, err)
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "got keys") {
		t.Errorf("%v, %q", err, out.String())
	}
	got := h.run(t, "", append([]string{"--timeout", "1s"}, append(kept, "--", "sleep", "1000")...)...)
	if got.code != 124 || !strings.Contains(got.errOut, "--timeout: 1s are over") || strings.Count(got.errOut, "turngate: --timeout: 1s are over\n") > 1 {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "rm", "--all"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	h.nothingLeft(t)
}

// run --keep-failed keeps the sandboxes of failed verifiers alone.
func TestFailedSandboxesAreKept(t *testing.T) {
	root := filepath.Join(testenv.Root(t), "examples/tasks")
	h := newHands(t)
	got := h.run(t, "", "run", filepath.Join(root, "hello"), filepath.Join(root, "wrong"), filepath.Join(root, "broken-setup"), "--sandbox", "local", "--keep-failed", "--console", "off", "-o", "json")
	id := entered.FindAllStringSubmatch(got.errOut, -1)
	if len(id) != 1 || !strings.Contains(got.errOut, "the sandbox of wrong is kept until") || !strings.Contains(got.out, "its sandbox is kept until") {
		t.Fatalf("%+v", got)
	}
	if all := h.list(t); len(all) != 1 || all[0].ID != id[0][1] || all[0].Task != "wrong" {
		t.Errorf("%+v", all)
	}
	if got := h.run(t, "", "sandbox", "exec", id[0][1], "--", "sh", "/tests/test.sh"); got.code == 127 {
		t.Errorf("the verifier is not there: %+v", got)
	}
	if got := h.run(t, "", "sandbox", "rm", "--all"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	h.nothingLeft(t)
}

func TestBadHands(t *testing.T) {
	h := newHands(t)
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no sandbox":        {[]string{"sandbox", "exec", "nobody"}, 1, "nobody"},
		"no id":             {[]string{"sandbox", "exec", "--", "ls"}, 2, "ID"},
		"two local paths":   {[]string{"sandbox", "cp", "a", "./b:c"}, 2, "ID:PATH"},
		"relative":          {[]string{"sandbox", "cp", "a", "id:b"}, 2, "absolute"},
		"relative, out":     {[]string{"sandbox", "cp", "id:..", "a"}, 2, "absolute"},
		"a port":            {[]string{"sandbox", "ports", "id", "--listen", "x"}, 2, "--listen"},
		"rm of nothing":     {[]string{"sandbox", "rm"}, 2, "--all"},
		"rm of two kinds":   {[]string{"sandbox", "rm", "id", "--all"}, 2, "--all"},
		"rm of both":        {[]string{"sandbox", "rm", "--all", "--older", "1h"}, 2, "--all"},
		"keep":              {[]string{"sandbox", "run", hello, "--keep=-1h"}, 2, "--keep"},
		"keep of a system":  {[]string{"run", hello, "--keep-failed", "--nats", "nats://127.0.0.1:1"}, 2, "--keep-failed"},
		"keep for too long": {[]string{"run", hello, "--keep-failed=1000h"}, 2, "--keep-failed"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := h.run(t, "", tt.args...); got.code != tt.code || !strings.Contains(got.errOut, tt.says) {
				t.Errorf("%+v", got)
			}
		})
	}
	// Another user can make the folder first.
	root := filepath.Join(h.temp, fmt.Sprintf("turngate-%d", os.Geteuid()))
	harness.Must(t, os.RemoveAll(root))
	harness.Must(t, os.Symlink(t.TempDir(), root))
	if got := h.run(t, "", "sandbox", "exec", "x"); got.code != 1 || !strings.Contains(got.errOut, "not a folder of this user alone") {
		t.Errorf("%+v", got)
	}
	if got := h.run(t, "", "sandbox", "run", hello, "--sandbox", "local", "--", "true"); got.code != 0 || !strings.Contains(got.errOut, "not a folder of this user alone") {
		t.Errorf("%+v", got)
	}
}

// A command in a keeper, and one in a kept sandbox, have the person's terminal.
func TestAKeeperAtATerminal(t *testing.T) {
	script, err := exec.LookPath("script") // makes a terminal
	testenv.Need(t, "script", err)
	h := newHands(t)
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	line := `stty rows 33 cols 99; before=$(stty -g)
"$TG" sandbox run "$HELLO" --sandbox local --keep -- sh -c 'stty size; echo begun; read -r line; echo "got <$line>"'
"$TG" sandbox exec "$("$TG" sandbox ls | awk 'END { print $1 }')" -- sh -c 'stty size; read -r line; echo "then <$line>"'
test "$(stty -g)" = "$before" && echo restored`
	cmd := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
	cmd.Env = append(os.Environ(), "TMPDIR="+h.temp, "TG="+h.binary, "HELLO="+hello)
	keys, err := cmd.StdinPipe()
	harness.Must(t, err)
	var out harness.Buffer
	cmd.Stdout = &out
	harness.Must(t, cmd.Start())
	for i, text := range []string{"one", "two"} {
		harness.Eventually(t, "the command", 5*time.Minute, func() bool { return strings.Count(out.String(), "33 99") > i })
		_, err := keys.Write([]byte(text + "\r"))
		harness.Must(t, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"got <one>", "then <two>", "restored", "turngate sandbox exec"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	if got := h.run(t, "", "sandbox", "rm", "--all"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	h.nothingLeft(t)
}
