package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Rollouts of a test of leaf nodes, and the model calls of each.
const (
	leafRollouts = 4
	leafCalls    = 2
)

// leafHub is one server, or three, with the trainer alpha and an address for leaf nodes.
type leafHub struct {
	nats    string // the program nats-server
	dir     string
	clients []string // URLs
	leaves  []string // addresses for leaf nodes
	servers []natsProcess
}

// startHub makes the files of servers that admit the leaf nodes of some sites, and starts
// them. edit changes the text of a server's file.
func startHub(t *testing.T, count int, sites, tls string, edit func(string) string) *leafHub {
	t.Helper()
	h := &leafHub{nats: testenv.NATSServer(t), dir: t.TempDir()}
	env := []string{"LEAVES=" + sites, "TLS=" + tls, "STORE=" + filepath.Join(h.dir, "js")}
	var hosts []string
	for i := range count {
		h.clients = append(h.clients, fmt.Sprintf("nats://127.0.0.1:%d", testenv.FreePort(t)))
		h.leaves = append(h.leaves, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
		hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)))
		of := ""
		if count > 1 {
			of = fmt.Sprintf("_n%d", i+1)
		}
		env = append(env, "LISTEN"+of+"="+strings.TrimPrefix(h.clients[i], "nats://"), "LEAF_LISTEN"+of+"="+h.leaves[i])
	}
	files := []string{"nats.conf"}
	if count == 1 {
		script(t, h.dir, "one", env, h.dir, "alpha", "")
	} else {
		script(t, h.dir, "three", env, h.dir, strings.Join(hosts, ","), "alpha", "")
		files = []string{"n1.conf", "n2.conf", "n3.conf"}
	}
	for _, name := range files {
		file := filepath.Join(h.dir, name)
		text, err := os.ReadFile(file)
		harness.Must(t, err)
		harness.Must(t, os.WriteFile(file, []byte(edit(string(text))), 0o600))
		h.servers = append(h.servers, serve(t, h.nats, file))
	}
	return h
}

// asPrinted is the edit that changes nothing.
func asPrinted(text string) string { return text }

// leafSite is a running leaf node with the folder of its files.
type leafSite struct {
	dir, url string
	natsProcess
}

// startSite makes the file of a leaf node of some servers, with a worker, and starts it.
func (h *leafHub) startSite(t *testing.T, name, servers, worker, tls string) leafSite {
	t.Helper()
	s := leafSite{dir: t.TempDir()}
	listen := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	s.url = "nats://" + listen
	harness.Must(t, os.Mkdir(filepath.Join(s.dir, "creds"), 0o700))
	seed, err := os.ReadFile(filepath.Join(h.dir, "creds", "leaf-"+name+".nk"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(s.dir, "creds", "leaf-"+name+".nk"), seed, 0o600))
	script(t, s.dir, "leaf", []string{"LISTEN=" + listen, "TLS=" + tls}, s.dir, name, servers, worker)
	s.natsProcess = serve(t, h.nats, filepath.Join(s.dir, "nats.conf"))
	return s
}

// creds is the file of a worker of the site.
func (s leafSite) creds(worker string) string {
	return filepath.Join(s.dir, "creds", "worker-"+worker+".nk")
}

// dialLeaf connects to a leaf node as a worker.
func dialLeaf(t *testing.T, s leafSite, name string, log zerolog.Logger) *broker.Broker {
	t.Helper()
	var b *broker.Broker
	harness.Eventually(t, "the leaf node", 5*time.Minute, func() bool {
		var err error
		b, err = broker.Dial(t.Context(), broker.Config{URL: s.url, Creds: s.creds(name), Inbox: broker.InboxFor(broker.RoleWorker, name), Log: log})
		return err == nil
	})
	t.Cleanup(b.Close)
	return b
}

// leafWorker is how a worker behind a leaf node runs.
type leafWorker struct {
	name     string
	slots    int
	replicas int
	timing   broker.Timing
	log      zerolog.Logger
}

// startLeafWorker runs a worker with dummy sandboxes until the test ends.
func startLeafWorker(t *testing.T, s leafSite, l leafWorker) {
	t.Helper()
	b := dialLeaf(t, s, l.name, l.log)
	harness.Eventually(t, "the streams of the servers behind the leaf node", 5*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return b.Streams.Setup(ctx, broker.StreamsConfig{Timing: l.timing, Replicas: l.replicas, Versions: 1000}) == nil
	})
	cache, err := bundles.New(t.TempDir(), 1<<30, l.log)
	harness.Must(t, err)
	backend := &dummy.Backend{Programs: map[string]dummy.Program{"agent": leafAgent}}
	c := worker.Config{Slots: l.slots, Backends: []sandboxes.Backend{backend}, Agents: agents.All(), Bundles: cache, Grace: time.Second, Log: l.log}
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: l.name, Instance: "i1", Slots: l.slots, Offer: c.Offer, Timing: l.timing})
	harness.Must(t, err)
	t.Cleanup(side.Close)
	calls, err := modelcall.NewClient(b, l.name, "i1")
	harness.Must(t, err)
	t.Cleanup(calls.Close)
	w, err := worker.New(c, side, calls)
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := backend.Open(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
}

// leafAgent asks its questions one after the other.
func leafAgent(ctx context.Context, p *dummy.Proc) int {
	for i := range leafCalls {
		body := fmt.Sprintf(`{"model":"policy","messages":[{"role":"user","content":"question %d"}]}`, i)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", strings.NewReader(body))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
			var res *http.Response
			if res, err = http.DefaultClient.Do(req); err == nil {
				defer res.Body.Close()
				var said []byte // the gate keeps the connection alive until the answer
				if said, err = io.ReadAll(res.Body); err == nil && !strings.Contains(string(said), `"ok"`) {
					err = fmt.Errorf("status %d: %s", res.StatusCode, said)
				}
			}
		}
		if err != nil {
			fmt.Fprintln(p.Stderr, err)
			return 1
		}
	}
	return 0
}

// leafTrainer is the trainer alpha at the hub. It gives no answer before answer is called.
type leafTrainer struct {
	ctx    context.Context // ends when the results are late
	own    *trainer.Trainer
	asked  chan struct{}
	answer func()

	mu        sync.Mutex
	generated map[string]int // by the call's key
}

func startLeafTrainer(t *testing.T, h *leafHub) *leafTrainer {
	t.Helper()
	may := make(chan struct{})
	l := &leafTrainer{asked: make(chan struct{}, 100), answer: sync.OnceFunc(func() { close(may) }), generated: map[string]int{}}
	c := trainer.Config{URL: strings.Join(h.clients, ","), Creds: filepath.Join(h.dir, "creds", "trainer-alpha.nk"), Name: "alpha", Log: zerolog.Nop()}
	harness.Eventually(t, "the trainer", 5*time.Minute, func() bool {
		var err error
		l.own, err = trainer.Dial(t.Context(), c)
		return err == nil
	})
	t.Cleanup(l.own.Close)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("the results did not come within 5 minutes"))
	l.ctx = ctx
	served := make(chan struct{})
	t.Cleanup(func() { cancel(); l.answer(); <-served })
	go func() {
		defer close(served)
		_ = l.own.Serve(ctx, trainer.Whole(func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
			l.mu.Lock()
			l.generated[c.Key]++
			l.mu.Unlock()
			l.asked <- struct{}{}
			select {
			case <-may:
			case <-ctx.Done():
			}
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
		}))
	}()
	return l
}

// submit submits a group, and waits until each of its rollouts asks its first question.
func (l *leafTrainer) submit(t *testing.T) {
	t.Helper()
	var group []schema.Request
	for i := range leafRollouts {
		r := harness.Request(schema.ID(fmt.Sprintf("alpha-leaf%d", i)))
		r.Agent, r.Group = schema.AgentChoice{Name: "command", Args: []string{"agent"}}, "leaves"
		group = append(group, r)
	}
	harness.Must(t, l.own.Submit(l.ctx, group))
	for range leafRollouts {
		select {
		case <-l.asked:
		case <-l.ctx.Done():
			t.Fatal(context.Cause(l.ctx))
		}
	}
}

// results waits for the end of the group: each rollout has one result, of its first
// attempt, and each of its calls was generated once. It returns the results by worker.
func (l *leafTrainer) results(t *testing.T) map[string]int {
	t.Helper()
	ended, by := map[schema.ID]bool{}, map[string]int{}
	for range leafRollouts {
		r, err := l.own.NextResult(l.ctx)
		harness.Must(t, err)
		ended[r.ID] = true
		by[r.Worker]++
		if r.Fault != nil || r.Attempt != 1 || r.Exit == nil || r.Exit.Code != 0 || len(r.Committed) != leafCalls {
			t.Errorf("%s: attempt %d, exit %+v, %d calls, fault %v", r.ID, r.Attempt, r.Exit, len(r.Committed), r.Fault)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(ended) != leafRollouts || len(l.generated) != leafRollouts*leafCalls {
		t.Errorf("%d rollouts have ended, and %d calls were generated", len(ended), len(l.generated))
	}
	again := maps.Clone(l.generated)
	maps.DeleteFunc(again, func(_ string, n int) bool { return n == 1 })
	if len(again) > 0 {
		t.Errorf("generated more than once: %v", again)
	}
	return by
}
