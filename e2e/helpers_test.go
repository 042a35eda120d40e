package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// bench is a NATS server in this process, with turngate in other processes.
type bench struct {
	nats   testenv.NATS
	binary string
	cache  string

	mu      sync.Mutex
	workers map[string]string // names of workers, by their state folder
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{nats: testenv.StartNATS(t, "local"), binary: testenv.Binary(t), cache: agentCache(), workers: map[string]string{}}
}

func agentCache() string {
	if dir := os.Getenv("TURNGATE_AGENTS"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "turngate-agents")
	}
	return filepath.Join(dir, "turngate", "agents")
}

// need skips a test that this machine cannot run.
func (b *bench) need(t testing.TB, sandbox, agent string) {
	t.Helper()
	s, err := agents.Find(agents.All(), agent)
	if err != nil {
		t.Fatal(err)
	}
	if !(agents.Cache{Dir: b.cache}).Installed(s) {
		testenv.Need(t, "agents", fmt.Errorf("%s: %w", agent, agents.ErrNotInstalled))
	}
	if sandbox == "docker" {
		testenv.Image(t)
	}
}

// everyAgent returns the names of the agents that call a model, all of which the test needs.
func (b *bench) everyAgent(t testing.TB, sandbox string) (names []string) {
	t.Helper()
	for _, s := range agents.All() {
		if s.Dialect != "" && !s.AnyProgram {
			b.need(t, sandbox, s.Name)
			names = append(names, s.Name)
		}
	}
	return names
}

// process is one turngate command in the background.
type process struct {
	cmd      *exec.Cmd
	out, err *harness.Buffer
	done     chan struct{}
}

// start starts a command that ends with the test.
func start(t testing.TB, argv ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), out: &harness.Buffer{}, err: &harness.Buffer{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.err
	p.cmd.WaitDelay = 10 * time.Second
	p.cmd.Env = append(os.Environ(), "TURNGATE_RUNS="+t.TempDir())
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%v\nstdout: %s\nstderr: %s", argv, clip(p.out.String()), clip(p.err.String()))
		}
	})
	return p
}

// tap starts a tap that writes events as JSON lines, and waits until it watches.
func (b *bench) tap(t *testing.T) *process {
	t.Helper()
	p := start(t, b.binary, "tap", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds(), "-o", "jsonl")
	harness.Eventually(t, "a tap that watches", 5*time.Minute, func() bool { return strings.Contains(p.err.String(), "watching") })
	return p
}

func clip(s string) string {
	const limit = 6000
	if len(s) > limit {
		return "[…]" + s[len(s)-limit:]
	}
	return s
}

// stop asks the process to end and waits for it.
func (p *process) stop(t testing.TB) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		t.Errorf("%v does not end", p.cmd.Args)
		_ = p.cmd.Process.Kill()
	}
}

// wait waits until the process has ended.
func (p *process) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("%v did not end within %s\n%s", p.cmd.Args, limit, clip(p.err.String()))
		return -1
	}
}

// worker starts a worker. If the test has the permission, the worker runs in its
// own mount namespace, in which hidden is an empty folder: a worker must open no
// path of a task.
func (b *bench) worker(t *testing.T, hidden string, flags ...string) *process {
	t.Helper()
	state := filepath.Join(t.TempDir(), "worker")
	if i := slices.Index(flags, "--state"); i >= 0 {
		state = flags[i+1]
		flags = slices.Delete(slices.Clone(flags), i, i+2)
	}
	b.mu.Lock()
	wid := b.workers[state]
	if wid == "" {
		wid = newWorkerName()
		b.workers[state] = wid
	}
	b.mu.Unlock()
	argv := append([]string{b.binary, "worker", "--nats", b.nats.URL(), "--creds", b.nats.AdmitWorker(t, wid), "--state", state, "--agents", b.cache, "--slots", "1"}, flags...)
	if hidden != "" && os.Geteuid() == 0 {
		script := `mount --make-rprivate / && mount -t tmpfs none "$1" && test -z "$(ls -A "$1")" && shift && exec "$@"`
		argv = append([]string{"unshare", "-m", "/bin/sh", "-c", script, "sh", hidden}, argv...)
	}
	p := start(t, argv...)
	harness.Eventually(t, "a ready worker", 5*time.Minute, func() bool { return strings.Contains(p.err.String(), "worker is ready") })
	return p
}

// newWorkerName returns a name of its own: workers with one name on one Docker
// engine remove each other's containers.
func newWorkerName() string { return "w" + strings.ToLower(rand.Text()[:8]) }

// run starts `turngate run` against the bench's server: the trainer.
func (b *bench) run(t *testing.T, args ...string) *process {
	t.Helper()
	return start(t, append([]string{b.binary, "run", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), "-o", "json"}, args...)...)
}

func results(t *testing.T, p *process) []schema.Result {
	t.Helper()
	var out []schema.Result
	if err := json.Unmarshal([]byte(p.out.String()), &out); err != nil {
		t.Fatalf("%v: %s\n%s", err, p.out, p.err)
	}
	return out
}

// copyTask copies a task directory with changed files.
func copyTask(t *testing.T, from string, change map[string]string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "task")
	if err := os.CopyFS(to, os.DirFS(filepath.Join(testenv.Root(t), from))); err != nil {
		t.Fatal(err)
	}
	for name, text := range change {
		if err := os.WriteFile(filepath.Join(to, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// watchArgv watches the argv of every process until stop, which returns the
// places where forbidden text was seen.
func watchArgv(t *testing.T, forbidden *regexp.Regexp) (stop func() []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen := map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			files, err := filepath.Glob("/proc/[0-9]*/cmdline")
			if err != nil {
				return
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				if errors.Is(err, os.ErrNotExist) || err != nil {
					continue
				}
				if text := forbidden.Find(data); text != nil {
					seen[fmt.Sprintf("%q in %q", text, data)] = true
				}
			}
		}
	}()
	return func() []string {
		cancel()
		<-done
		var out []string
		for s := range seen {
			out = append(out, s)
		}
		return out
	}
}
