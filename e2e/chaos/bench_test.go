package chaos_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/testenv"
)

// speed is how many times faster than the protocol's own durations runs are.
const speed = 20

// binaries are built once for all tests.
type binaries struct{ turngate, proc string }

func build(t testing.TB) binaries {
	t.Helper()
	root := testenv.Root(t)
	proc := filepath.Join(t.TempDir(), "chaosproc")
	cmd := exec.Command("go", "build", "-tags", "faults", "-o", proc, "./e2e/chaos/chaosproc")
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, said)
	}
	return binaries{testenv.Binary(t), proc}
}

// process is one process of a run, by its role.
type process struct {
	role    string
	argv    []string
	env     []string
	proxy   *testenv.Proxy
	cmd     *exec.Cmd
	log     *os.File
	ended   chan struct{}
	out     bytes.Buffer // guarded by ended
	mu      sync.Mutex
	said    chan string
	stopped bool // SIGSTOP
	down    bool // on purpose
}

// bench is a NATS server, workers and trainers, each a process.
type bench struct {
	t        testing.TB
	bin      binaries
	dir      string
	port     int
	servers  []string // URLs, when there are several
	nats     *process
	speed    int
	slots    int // of each worker; 0: few
	workers  []*process
	trainer  *process
	ledger   *ledger  // of what the run did to them
	violated []string // some of the violations that were found
	steady   bool     // nothing is done to workers: no rollout is run twice
}

func itoa(n int) string { return strconv.Itoa(n) }

// emptyBench is one before begin, with the usual speed.
func emptyBench(t testing.TB, bin binaries) *bench {
	t.Helper()
	return &bench{t: t, bin: bin, dir: t.TempDir(), port: testenv.FreePort(t), ledger: &ledger{}, speed: speed}
}

func newBench(t testing.TB, bin binaries, workers int, env []string, trainerFlags ...string) *bench {
	t.Helper()
	b := emptyBench(t, bin)
	b.begin(workers, env, trainerFlags)
	return b
}

// begin starts a server and workers, and prepares a trainer.
func (b *bench) begin(workers int, env, trainerFlags []string) {
	t, bin := b.t, b.bin
	t.Helper()
	t.Cleanup(func() {
		for _, p := range b.all() {
			b.kill(p)
		}
		if t.Failed() {
			b.tell()
			for _, v := range b.violated {
				b.story(v)
			}
		}
	})
	b.nats = &process{role: "nats", argv: []string{
		bin.turngate, "nats", "--state", filepath.Join(b.dir, "nats"), "--port", fmt.Sprint(b.port), "--trainers", "alpha", "--relaxed-sync",
	}}
	b.start(b.nats)
	b.await(b.nats, "workers")
	for i := range workers {
		skew := []string{"0", "1h", "-1h"}[i%3] // wrong clocks must not matter
		b.add(append([]string{crash.EnvSkew + "=" + skew}, env...)...)
	}
	for _, w := range b.workers {
		b.await(w, "ready")
	}
	b.trainer = &process{role: "trainer", env: env, argv: append([]string{
		bin.proc, "trainer", "-nats", fmt.Sprintf("nats://127.0.0.1:%d", b.port), "-creds", b.creds("trainer-alpha"), "-name", "alpha", "-dir", b.dir, "-speed", fmt.Sprint(b.speed),
	}, trainerFlags...)}
}

// add starts one more worker, behind a proxy of its own.
func (b *bench) add(env ...string) *process {
	b.t.Helper()
	name := fmt.Sprintf("w%d", len(b.workers))
	p := testenv.NewProxy(b.t, fmt.Sprintf("127.0.0.1:%d", b.port))
	w := &process{role: name, proxy: p, env: env, argv: []string{
		b.bin.proc, "worker", "-nats", p.URL(), "-creds", b.creds("worker"), "-name", name, "-dir", b.dir, "-speed", fmt.Sprint(b.speed), "-helper", b.bin.turngate, "-slots", itoa(cmp.Or(b.slots, 4)),
	}}
	b.workers = append(b.workers, w)
	b.start(w)
	return w
}

func (b *bench) all() []*process {
	return append(append([]*process{}, b.workers...), b.trainer, b.nats)
}

// url is where the servers are.
func (b *bench) url() string {
	if len(b.servers) > 0 {
		return strings.Join(b.servers, ",")
	}
	return "nats://127.0.0.1:" + itoa(b.port)
}

func (b *bench) creds(name string) string {
	return filepath.Join(b.dir, "nats", "creds", name+".nk")
}

// start starts a process, again if it ran before.
func (b *bench) start(p *process) {
	b.t.Helper()
	var err error
	if p.log, err = os.OpenFile(filepath.Join(b.dir, p.role+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		b.t.Fatal(err)
	}
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	p.ended, p.said, p.down, p.stopped = make(chan struct{}), make(chan string, 64), false, false
	p.out.Reset()
	b.ledger.began(p.role, p.cmd.Process.Pid)
	go func(cmd *exec.Cmd, log *os.File, ended chan struct{}, said chan string) {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.mu.Lock()
			p.out.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
			select {
			case said <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait()
		b.ledger.ended(cmd.Process.Pid)
		log.Close()
		close(ended)
	}(p.cmd, p.log, p.ended, p.said)
}

// await waits for a line that begins with a word.
func (b *bench) await(p *process, word string) string {
	b.t.Helper()
	limit := time.After(5 * time.Minute) // a cluster makes its streams one after the other, a wave takes as long as it takes
	for {
		select {
		case line := <-p.said:
			if strings.HasPrefix(line, word) {
				return line
			}
		case <-p.ended:
			b.tell()
			b.t.Fatalf("%s ended: %s", p.role, p.cmd.ProcessState)
		case <-limit:
			b.tell()
			b.t.Fatalf("%s did not say %q", p.role, word)
		}
	}
}

func (p *process) alive() bool {
	if p == nil || p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends a process at once.
func (b *bench) kill(p *process) {
	if p.alive() {
		p.down = true
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

func (b *bench) signal(p *process, s syscall.Signal) {
	if p.alive() {
		_ = p.cmd.Process.Signal(s)
	}
}

// stop asks a worker to end and reads what it has left.
func (b *bench) stop(p *process) (left history.Left, ok bool) {
	p.down = true
	b.signal(p, syscall.SIGCONT)
	b.signal(p, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		b.signal(p, syscall.SIGQUIT) // its goroutines go to its log
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
		}
		b.kill(p)
		return left, false
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return left, true // a poison job was faster
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	if lines[0] != "ready" { // it was told to end before it had reached a server
		return left, true
	}
	return left, json.Unmarshal([]byte(lines[len(lines)-1]), &left) == nil && strings.HasPrefix(lines[len(lines)-1], "{")
}

// tell shows the ends of the logs.
func (b *bench) tell() {
	for _, p := range b.all() {
		if p == nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(b.dir, p.role+".log"))
		if err != nil {
			continue
		}
		b.t.Logf("%s: %s", p.role, data[max(len(data)-30000, 0):])
	}
}

// story shows what the processes wrote about the rollout that a violation
// begins with.
func (b *bench) story(violation string) {
	id, _, _ := strings.Cut(violation, " ")
	id = strings.TrimSuffix(id, ":")
	var said []string
	for _, p := range b.all() {
		data, err := os.ReadFile(filepath.Join(b.dir, p.role+".log"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, `"`+id+`"`) {
				said = append(said, p.role+": "+strings.TrimSpace(line))
			}
		}
	}
	for _, line := range said[max(len(said)-40, 0):] {
		b.t.Logf("about %s: %s", id, line)
	}
}

// wait waits for a while, or until the context ends.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ledger is what the run itself knows: which process lived when.
type ledger struct {
	mu    sync.Mutex
	lives map[int]*life
}

type life struct {
	role       string
	from, till time.Time
}

func (l *ledger) began(role string, pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lives == nil {
		l.lives = map[int]*life{}
	}
	l.lives[pid] = &life{role: role, from: time.Now()}
}

func (l *ledger) ended(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lives[pid].till = time.Now()
}

// died is when a process ended; zero while it lives.
func (l *ledger) died(pid int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life := l.lives[pid]; life != nil {
		return life.till
	}
	return time.Time{}
}
