package chaos_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/testenv"
)

// speed divides the protocol's default durations in the runs.
const speed = 20

// process is one process of a run, by its role.
type process struct {
	role   string
	name   string // of a trainer
	python string // interpreter of a trainer in Python; empty: it is chaosproc
	argv   []string
	env    []string
	debug  string // its socket for the run's questions; empty: none
	tmp    string // its folder for temporary files
	proxy  *testenv.Proxy
	cmd    *exec.Cmd
	log    *os.File
	ended  chan struct{}
	said   chan string
	down   bool // on purpose
}

// bench is a NATS server, workers and trainers, each a process.
type bench struct {
	t        testing.TB
	bin      binaries
	dir      string
	name     string // of its sockets
	port     int
	synced   bool     // every write of the server is on disk before it is confirmed
	servers  []string // URLs of a cluster's servers
	nats     *process
	peers    []*process // the other servers of a cluster
	speed    int
	slots    int // of each worker; 0: a small number
	workers  []*process
	trainers []*process
	guests   []string // trainers with a credential and without a process
	census   *census
	ledger   *ledger  // lives and deaths of the processes
	violated []string // some of the violations
	steady   bool     // no faults of workers, so no rollout may run twice
}

func itoa(n int) string { return strconv.Itoa(n) }

// emptyBench returns a bench that was not begun, with the usual speed.
func emptyBench(t testing.TB, bin binaries) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), port: testenv.FreePort(t), ledger: &ledger{}, speed: speed, trainers: []*process{{name: "alpha"}}}
	b.name = fmt.Sprintf("turngate-chaos-%d-%d", os.Getpid(), b.port)
	// Links in the run's own folder distinguish its processes from other runs'.
	for name, program := range map[*string]string{&b.bin.turngate: bin.turngate, &b.bin.proc: bin.proc} {
		*name = filepath.Join(b.dir, filepath.Base(program))
		if err := os.Link(program, *name); err != nil {
			t.Fatal(err)
		}
	}
	b.census = newCensus(t, b.name)
	t.Cleanup(b.census.close)
	t.Cleanup(b.end)
	return b
}

// end kills all processes, and shows their logs if the test has failed.
func (b *bench) end() {
	for _, p := range b.all() {
		b.kill(p)
	}
	if b.t.Failed() {
		b.logEnds()
		for _, v := range b.violated {
			b.printLogs(v)
		}
	}
}

func newBench(t testing.TB, bin binaries, workers int, env []string, trainerFlags ...string) *bench {
	t.Helper()
	b := emptyBench(t, bin)
	b.begin(workers, env, trainerFlags)
	return b
}

// begin starts a server and workers, and prepares the trainers.
func (b *bench) begin(workers int, env, trainerFlags []string) {
	b.t.Helper()
	names := slices.Clone(b.guests)
	for _, t := range b.trainers {
		names = append(names, t.name)
	}
	b.nats = &process{role: "nats", argv: []string{
		b.bin.turngate, "nats", "--state", filepath.Join(b.dir, "nats"), "--port", itoa(b.port), "--trainers", strings.Join(names, ","), "--workers", workerNames(),
	}}
	if !b.synced {
		b.nats.argv = append(b.nats.argv, "--relaxed-sync")
	}
	b.start(b.nats)
	b.await(b.nats, "more")
	for i := range workers {
		wrong := []string{"0", "1h", "-1h"}[i%3] // clocks that are wrong must not matter
		b.add(append([]string{"CHAOS_CLOCK=" + wrong}, env...)...)
	}
	for _, w := range b.workers {
		b.await(w, history.Ready)
	}
	b.prepare(env, trainerFlags)
}

// prepare describes the processes of the trainers.
func (b *bench) prepare(env, flags []string) {
	root := testenv.Root(b.t)
	for _, t := range b.trainers {
		t.role, t.env, t.debug = "trainer-"+t.name, env, b.name+"-trainer-"+t.name
		t.argv = append([]string{
			b.bin.proc, "trainer", "-nats", b.url(), "-creds", b.creds("trainer-" + t.name), "-name", t.name, "-dir", b.dir, "-speed", itoa(b.speed), "-debug", t.debug,
		}, flags...)
		if t.python != "" {
			t.argv = []string{t.python, "-B", filepath.Join(root, "e2e", "chaos", "trainer.py"), "-nats", b.url(), "-creds", b.creds("trainer-" + t.name), "-name", t.name, "-dir", b.dir, "-speed", itoa(b.speed)}
			t.env, t.debug = []string{"PYTHONPATH=" + filepath.Join(root, "clients", "python", "src")}, ""
		}
	}
}

// add starts one more worker, behind a proxy of its own.
func (b *bench) add(env ...string) *process {
	b.t.Helper()
	p := testenv.NewProxy(b.t, fmt.Sprintf("127.0.0.1:%d", b.port))
	return b.addAt(p.URL(), p, env)
}

// addAt starts one more worker, which connects to this URL.
func (b *bench) addAt(url string, p *testenv.Proxy, env []string, flags ...string) *process {
	b.t.Helper()
	name := fmt.Sprintf("w%d", len(b.workers))
	w := &process{role: name, proxy: p, env: env, debug: b.name + "-" + name, tmp: filepath.Join(b.dir, "tmp-"+name)}
	w.argv = append([]string{
		b.bin.proc, "worker", "-nats", url, "-creds", b.creds("worker-" + name), "-name", name, "-dir", b.dir, "-speed", itoa(b.speed),
		"-helper", b.bin.turngate, "-slots", itoa(cmp.Or(b.slots, 4)), "-debug", w.debug, "-census", b.name,
	}, flags...)
	b.workers = append(b.workers, w)
	b.start(w)
	return w
}

func (b *bench) all() []*process {
	all := append(slices.Clone(b.workers), b.trainers...)
	if b.nats != nil {
		all = append(all, b.nats)
	}
	return all
}

// url returns the URLs of the servers.
func (b *bench) url() string {
	if len(b.servers) > 0 {
		return strings.Join(b.servers, ",")
	}
	return "nats://127.0.0.1:" + itoa(b.port)
}

func (b *bench) creds(name string) string {
	return filepath.Join(b.dir, "nats", "creds", name+".nk")
}

// start starts or restarts a process.
func (b *bench) start(p *process) {
	b.t.Helper()
	var err error
	if p.log, err = os.OpenFile(filepath.Join(b.dir, p.role+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		b.t.Fatal(err)
	}
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Env = append(os.Environ(), p.env...)
	if p.tmp != "" {
		if err := p.clearTmp(); err != nil {
			b.t.Fatal(err)
		}
		p.cmd.Env = append(p.cmd.Env, "TMPDIR="+p.tmp)
	}
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	p.ended, p.said, p.down = make(chan struct{}), make(chan string, 1024), false
	b.ledger.began(p.role, p.cmd.Process.Pid)
	go func(cmd *exec.Cmd, log *os.File, ended chan struct{}, said chan string) {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
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
	limit := time.After(5 * time.Minute) // a cluster needs long for its streams, and so does a wave of rollouts
	for {
		select {
		case line := <-p.said:
			if strings.HasPrefix(line, word) {
				return line
			}
		case <-p.ended:
			b.logEnds()
			b.t.Fatalf("%s ended: %s", p.role, p.cmd.ProcessState)
		case <-limit:
			b.logEnds()
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

// stop asks a worker to end, and returns a description of everything that it left.
func (b *bench) stop(p *process) (left []string) {
	p.down = true
	b.signal(p, syscall.SIGCONT)
	b.signal(p, syscall.SIGTERM)
	limit := time.After(30 * time.Second)
	for line := ""; line != history.Ended; {
		select {
		case line = <-p.said:
		case <-p.ended:
			return nil // it had not reached a server, or a poison job killed it first
		case <-limit:
			b.signal(p, syscall.SIGQUIT) // its goroutines go to its log
			select {
			case <-p.ended:
			case <-time.After(5 * time.Second):
			}
			b.kill(p)
			return []string{p.role + " did not end by itself"}
		}
	}
	left, err := b.leftOf(p)
	if err != nil {
		left = append(left, fmt.Sprintf("%s could not be inspected: %v", p.role, err))
	}
	for i, what := range left {
		left[i] = p.role + " has ended and left " + what
	}
	b.kill(p)
	return left
}

// leftOf looks for remains of a worker that has ended its work but still has open
// connections.
func (b *bench) leftOf(p *process) (left []string, err error) {
	boxes, err := p.boxes()
	if err != nil {
		return nil, err
	}
	if len(boxes) > 0 {
		left = append(left, fmt.Sprintf("%d sandboxes: %v", len(boxes), boxes[:min(len(boxes), 3)]))
	}
	subs, err := b.subscriptions(p.role)
	for try := 0; (err != nil || len(subs) > 0) && try < 60; try++ { // the server may be away, or has not read the last commands
		wait(context.Background(), time.Second)
		subs, err = b.subscriptions(p.role)
	}
	if err != nil {
		return left, err
	}
	if len(subs) > 0 {
		left = append(left, fmt.Sprintf("%d subscriptions: %v", len(subs), subs[:min(len(subs), 5)]))
	}
	if _, err := p.ask(http.MethodPost, history.PathClose); err != nil {
		return left, err
	}
	var stacks []string
	for range 100 { // some end a moment later
		if stacks, err = p.goroutines(); err != nil || len(stacks) == 0 {
			return left, err
		}
		wait(context.Background(), 50*time.Millisecond)
	}
	return append(left, fmt.Sprintf("%d goroutines, such as %s", len(stacks), stacks[0])), nil
}

// logEnds shows the ends of the logs.
func (b *bench) logEnds() {
	for _, p := range b.all() {
		data, err := os.ReadFile(filepath.Join(b.dir, p.role+".log"))
		if err != nil {
			continue
		}
		b.t.Logf("%s: %s", p.role, data[max(len(data)-30000, 0):])
	}
}

// printLogs returns the log lines of all processes about the rollout at the beginning
// of a violation.
func (b *bench) printLogs(violation string) {
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
func wait(ctx context.Context, d time.Duration) bool { return wire.Pause(ctx, d) == nil }

// ledger records when each process started and died.
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
