package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/dummy"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker"
)

func runWorker(ctx context.Context, o options, log zerolog.Logger) error {
	before := goleak.IgnoreCurrent()
	instance := fmt.Sprintf("p%d", os.Getpid())
	b, err := dial(ctx, o, broker.InboxFor("worker", o.name+"-"+instance), log)
	if err != nil {
		return err
	}
	timing := broker.DefaultTiming().Faster(o.speed)
	for {
		err := b.Setup(ctx, broker.StreamsConfig{Timing: timing, Replicas: o.replicas})
		if err == nil {
			break
		}
		log.Warn().Err(err).Msg("the streams are not there yet")
		if !sleep(ctx, 200*time.Millisecond) {
			return nil
		}
	}
	rec, err := openRecord(filepath.Join(o.dir, "sandboxes.jsonl"))
	if err != nil {
		return err
	}
	watched := &watchedBackend{rec: rec, worker: o.name}
	watched.Backend = &dummy.Backend{Programs: map[string]dummy.Program{"agent": watched.agent, "poison": poison}}
	backends := []sandboxes.Backend{watched}
	if o.helper != "" {
		backends = append(backends, &local.Backend{Helper: o.helper, StateDir: filepath.Join(o.dir, "state-"+o.name)})
	}
	c := worker.Config{Slots: o.slots, Backends: backends, Agents: agents.All(), Grace: 500 * time.Millisecond, Log: log}
	side, err := b.WorkerSide(broker.WorkerConfig{Worker: o.name, Instance: instance, Slots: o.slots, Offer: c.Offer, Timing: timing})
	if err != nil {
		return err
	}
	w, err := worker.New(c, side)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if err := w.Run(ctx); err != nil {
		return err
	}
	side.Close()
	subs := b.Subscriptions()
	b.Close()
	http.DefaultClient.CloseIdleConnections()
	leak := ""
	if err := goleak.Find(before); err != nil {
		leak = err.Error()
	}
	// Two shared inboxes for replies belong to the connections.
	fmt.Printf("%s\n", mustJSON(history.Left{Open: watched.Open(), Subscriptions: max(subs-2, 0), Leak: leak}))
	return nil
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// watchedBackend writes down when each sandbox begins and ends.
type watchedBackend struct {
	*dummy.Backend
	rec    *record
	worker string
	count  atomic.Int64
}

func (b *watchedBackend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	box := fmt.Sprintf("%d-%d", os.Getpid(), b.count.Add(1))
	env := map[string]string{"CHAOS_BOX": box}
	for k, v := range s.Env {
		env[k] = v
	}
	s.Env = env
	line := history.Box{Op: "create", Box: box, PID: os.Getpid(), Worker: b.worker, Rollout: s.Rollout, Attempt: s.Attempt}
	line.At = time.Now().UnixNano()
	b.rec.write(line)
	sb, err := b.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return &watchedSandbox{sb, b, line}, nil
}

type watchedSandbox struct {
	sandboxes.Sandbox
	b    *watchedBackend
	line history.Box
}

func (s *watchedSandbox) Close(ctx context.Context) error {
	err := s.Sandbox.Close(ctx)
	s.line.Op, s.line.At = "close", time.Now().UnixNano()
	s.b.rec.write(s.line)
	return err
}

// poison kills the worker that runs it.
func poison(context.Context, *dummy.Proc) int {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

var generation = regexp.MustCompile(`gen:([0-9a-f]+)`)

// agent asks its questions one after the other and retries as SDKs do. It
// writes down which generations it read for each.
func (b *watchedBackend) agent(ctx context.Context, p *dummy.Proc) int {
	calls, _ := strconv.Atoi(p.Env["CHAOS_CALLS"])
	for i := range calls {
		ok := false
		for try := 0; try < 4 && !ok && ctx.Err() == nil; try++ {
			gens, err := question(ctx, p, i)
			for g := range gens {
				b.rec.write(history.Box{Op: "read", Box: p.Env["CHAOS_BOX"], PID: os.Getpid(), At: time.Now().UnixNano(), Question: i, Try: try, Gen: g})
			}
			if err == nil {
				ok = true
			} else if !sleep(ctx, 300*time.Millisecond) {
				return 1
			}
		}
		if !ok {
			fmt.Fprintln(p.Stderr, "no answer")
			return 1
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return 1
		}
	}
	return 0
}

func question(ctx context.Context, p *dummy.Proc, i int) (map[string]bool, error) {
	gens := map[string]bool{}
	stream := p.Env["CHAOS_STREAM"] != ""
	body := mustJSON(map[string]any{"model": "policy", "stream": stream, "messages": []any{map[string]string{"role": "user", "content": fmt.Sprintf("question %d", i)}}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return gens, err
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return gens, err
	}
	defer res.Body.Close()
	done := !stream
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := lines.Text()
		for _, m := range generation.FindAllStringSubmatch(text, -1) {
			gens[m[1]] = true
		}
		if strings.HasPrefix(text, "data: [DONE]") {
			done = true
		}
	}
	if err := lines.Err(); err != nil {
		return gens, err
	}
	if res.StatusCode != http.StatusOK || !done || len(gens) == 0 {
		return gens, fmt.Errorf("status %d, whole: %v: %w", res.StatusCode, done, io.ErrUnexpectedEOF)
	}
	return gens, nil
}

// request is one rollout of a run.
func request(o options, n int, group string) schema.Request {
	id, err := schema.NewID(o.name, fmt.Sprintf("%s%d", o.prefix, n))
	if err != nil {
		panic(err)
	}
	env := map[string]string{"CHAOS_CALLS": strconv.Itoa(cmp.Or(o.calls, 1+n%4))}
	r := schema.Request{
		ID: id, Trainer: o.name, Group: group, Index: n, Task: schema.Task{Name: "chaos", Instruction: "work"},
		Agent: schema.AgentChoice{Name: "command", Args: []string{"agent"}}, Sandbox: schema.SandboxChoice{Backend: "dummy", Env: env}, MaxAttempts: 50,
	}
	r.Gate.WaitMS = 600_000
	if n%3 == 0 {
		env["CHAOS_STREAM"], r.Gate.Stream = "1", schema.StreamPass
	}
	switch {
	case o.local > 0 && n%int(1/o.local) == 1:
		r.Agent, r.Sandbox = schema.AgentChoice{Name: "mini"}, schema.SandboxChoice{Backend: "local"}
	case n%97 == 13 && !o.harmless:
		r.Agent.Args[0], r.MaxAttempts = "poison", 2
	}
	return r
}
