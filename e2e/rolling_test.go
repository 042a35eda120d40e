package e2e_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// fleet is three servers and two workers, each a process.
type fleet struct {
	dir, urls string
	servers   [3]*process
	serving   [3][]string // the arguments of each server
	metrics   [3]string   // the URL of each server's health
	workers   [2]*process
	names     [2]string
}

const fleetSlots = 3 // of each worker

// newFleet starts servers and workers with a binary.
func newFleet(t *testing.T, binary string) *fleet {
	t.Helper()
	f := &fleet{dir: t.TempDir(), names: [2]string{newWorkerName(), newWorkerName()}}
	var ports, clusterPorts, healthPorts [3]string
	for i := range 3 {
		ports[i], clusterPorts[i], healthPorts[i] = strconv.Itoa(testenv.FreePort(t)), strconv.Itoa(testenv.FreePort(t)), strconv.Itoa(testenv.FreePort(t))
	}
	var urls []string
	for i := range 3 {
		routes := "127.0.0.1:" + clusterPorts[(i+1)%3] + ",127.0.0.1:" + clusterPorts[(i+2)%3]
		f.serving[i] = []string{
			"nats", "--state", filepath.Join(f.dir, "n"+strconv.Itoa(i)), "--port", ports[i], "--metrics", "127.0.0.1:" + healthPorts[i], "--relaxed-sync",
			"--cluster-name", "n" + strconv.Itoa(i), "--cluster-port", clusterPorts[i], "--routes", routes,
			"--creds-dir", filepath.Join(f.dir, "creds"), "--workers", strings.Join(f.names[:], ","),
		}
		f.metrics[i] = "http://127.0.0.1:" + healthPorts[i]
		urls = append(urls, "nats://127.0.0.1:"+ports[i])
		f.servers[i] = start(t, append([]string{binary}, f.serving[i]...)...)
	}
	f.urls = strings.Join(urls, ",")
	for i := range f.servers {
		f.healthy(t, i)
	}
	for i := range f.workers {
		f.workers[i] = f.worker(t, binary, i)
	}
	return f
}

// healthy waits until a server has caught up with the others.
func (f *fleet) healthy(t *testing.T, i int) {
	t.Helper()
	said := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last health of server %d: %s", i, said)
		}
	})
	harness.Eventually(t, "the health of server "+strconv.Itoa(i), 5*time.Minute, func() bool {
		res, err := http.Get(f.metrics[i] + "/readyz") //nolint:noctx // of a test
		if err != nil {
			said = err.Error()
			return false
		}
		defer res.Body.Close()
		said = res.Status
		return res.StatusCode == http.StatusOK
	})
}

// worker starts a process of a worker, which follows the one that runs.
func (f *fleet) worker(t *testing.T, binary string, i int) *process {
	t.Helper()
	p := start(t, binary, "worker", "--nats", f.urls, "--creds", f.creds("worker-"+f.names[i]), "--state", filepath.Join(f.dir, f.names[i]),
		"--agents", agentCache(), "--slots", strconv.Itoa(fleetSlots), "--sandboxes", "local", "--replicas", "3", "--handover")
	harness.Eventually(t, "a ready worker", 5*time.Minute, func() bool { return strings.Contains(p.err.String(), "worker is ready") })
	return p
}

func (f *fleet) creds(name string) string { return filepath.Join(f.dir, "creds", name+".nk") }

// dial connects to the servers.
func (f *fleet) dial(t *testing.T, role, name, creds string) *broker.Broker {
	t.Helper()
	return testenv.DialAt(t, f.urls, f.creds(creds), broker.InboxFor(role, name), zerolog.Nop())
}

// flow keeps as many rollouts open as the workers have slots. It returns a function that
// ends it and returns how many rollouts it has submitted.
func (l *load) flow(t *testing.T) (end func() int) {
	t.Helper()
	over, ended := make(chan struct{}), make(chan struct{})
	n := 0
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			for open := n - l.ended(); open < 2*fleetSlots; open++ {
				r := l.request
				r.ID, r.Trainer = l.id(n+1), "local"
				if err := l.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
					t.Errorf("submit %s: %v", r.ID, err)
					return
				}
				n++
			}
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	}()
	stop := sync.OnceFunc(func() { close(over) })
	t.Cleanup(func() { stop(); <-ended })
	return func() int { stop(); <-ended; return n }
}

// ended returns how many rollouts have a result.
func (l *load) ended() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.results)
}

// more waits until some more rollouts have ended.
func (l *load) more(t *testing.T, after string) {
	t.Helper()
	want := l.ended() + 2
	harness.Eventually(t, "two results after "+after, 5*time.Minute, func() bool { return l.ended() >= want })
}

// TestAnUpgradeOfAllProcesses replaces two workers and then three servers by another build,
// one after the other, while other rollouts begin and end. Two rollouts last for the whole upgrade,
// each with a call in flight.
func TestAnUpgradeOfAllProcesses(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	f := newFleet(t, testenv.Binary(t))
	next := testenv.BinaryWith(t, "-ldflags", "-X main.version=next")
	l := newLoad(t, "local", f.dial(t, "trainer", "local", "trainer-local"))
	long := [2]schema.ID{l.id(-1), l.id(-2)}
	var release [2]func()
	for i, id := range long {
		release[i] = l.submit(t, id, true)
	}
	end := l.flow(t)
	l.more(t, "the beginning")
	begin := time.Now()
	old := f.workers
	for i := range f.workers {
		f.workers[i] = f.worker(t, next, i)
		l.more(t, fmt.Sprintf("the start of the next process of worker %d", i))
	}
	var away [3]time.Duration
	for i, s := range f.servers {
		down := time.Now()
		s.stop(t)
		f.servers[i] = start(t, append([]string{next}, f.serving[i]...)...)
		f.healthy(t, i)
		away[i] = time.Since(down).Round(10 * time.Millisecond)
		l.more(t, fmt.Sprintf("the health of server %d", i))
	}
	took := time.Since(begin)
	n := end()
	for i := range long {
		release[i]()
	}
	ops := f.dial(t, broker.RoleOps, broker.RoleOps, "ops")
	ids := long[:]
	for i := range n {
		ids = append(ids, l.id(i+1))
	}
	for _, id := range ids {
		l.ends(t, id, 1)
		state, err := ops.Records.State(t.Context(), id)
		if err != nil || state.Attempt != 1 || state.Tries != 1 {
			t.Errorf("state of %s: %+v, %v", id, state, err)
		}
	}
	for _, p := range old {
		exits(t, p)
	}
	l.mu.Lock()
	if len(l.results) != len(ids) || len(l.generated) != 3*len(ids) {
		t.Errorf("%d results and %d calls of %d rollouts", len(l.results), len(l.generated), len(ids))
	}
	l.mu.Unlock()
	workers, err := ops.Records.Workers(t.Context())
	harness.Must(t, err)
	for _, w := range workers {
		if w.Version != "next" {
			t.Errorf("worker %s has the version %q", w.Worker, w.Version)
		}
	}
	for i, p := range f.workers {
		p.stop(t)
		if !strings.Contains(p.err.String(), "rollout begins") {
			t.Errorf("the next process of worker %d took no rollout", i)
		}
	}
	for _, id := range ids {
		nothingLeft(t, "local", id)
	}
	t.Logf("%d rollouts, none lost, one attempt each; the upgrade took %s, each server was away or behind for %v", len(ids), took.Round(10*time.Millisecond), away)
}
