package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

// bench is a worker with dummy sandboxes and a trainer, on a real server.
type bench struct {
	nats    testenv.NATS
	backend *dummy.Backend
	trainer *trainer.Trainer
	stop    func() // drains the worker
	metrics *telemetry.Metrics
	worker  *worker.Worker
}

func newBench(t *testing.T, programs map[string]dummy.Program, change ...func(*worker.Config)) *bench {
	t.Helper()
	b := &bench{nats: testenv.StartNATS(t, "alpha"), backend: &dummy.Backend{Programs: programs}, metrics: telemetry.New("test")}
	cache, err := bundles.New(t.TempDir(), 1<<30, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	c := worker.Config{Slots: 2, Backends: []sandboxes.Backend{b.backend}, Agents: agents.All(), Bundles: cache, Grace: time.Minute, Metrics: b.metrics.Rollouts(), Log: zerolog.Nop()}
	for _, f := range change {
		f(&c)
	}
	timing := broker.DefaultTiming()
	timing.NoCapable, timing.Tidy = 0, 200*time.Millisecond // there is only one worker
	nc := b.nats.Worker(t, "w1")
	side, err := queue.NewWorker(nc, queue.WorkerConfig{Worker: "w1", Instance: "i1", Slots: 2, Offer: c.Offer, Timing: timing, Metrics: b.metrics.Queue(), Traces: c.Traces})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(side.Close)
	calls, err := modelcall.NewClient(nc, "w1", "i1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(calls.Close)
	w, err := worker.New(c, side, calls)
	if err != nil {
		t.Fatal(err)
	}
	b.worker = w
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		b.stop()
		if n := b.backend.Open(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
	if b.trainer, err = trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.trainer.Close)
	return b
}

// request returns a request that runs the program agent, and then verify.
func request(id schema.ID) schema.Request {
	r := harness.Request(id)
	r.Agent, r.Verify = schema.AgentChoice{Name: "command", Args: []string{"agent"}}, &schema.Verify{Run: "verify"}
	return r
}

// result submits one request and waits for its result.
func (b *bench) result(t *testing.T, r schema.Request) schema.Result {
	t.Helper()
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	return b.next(t)
}

// next waits for the next result.
func (b *bench) next(t *testing.T) schema.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	res, err := b.trainer.NextResult(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// artifact returns a file of a result.
func (b *bench) artifact(t *testing.T, res schema.Result, name string) string {
	t.Helper()
	for _, a := range res.Artifacts {
		if a.Name != name {
			continue
		}
		data, err := b.trainer.Artifact(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	t.Fatalf("there is no %s among %v", name, res.Artifacts)
	return ""
}

// serve answers every call until the test ends.
func (b *bench) serve(t *testing.T, f func(ctx context.Context, c *schema.Call) (*schema.Reply, error)) {
	t.Helper()
	b.answer(t, trainer.Whole(f))
}

// answer answers model calls with f, which may emit pieces, until the test ends.
func (b *bench) answer(t *testing.T, f trainer.Answerer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.trainer.Serve(ctx, f)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func ok(context.Context, *schema.Call) (*schema.Reply, error) {
	return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 5, CompletionTokens: 2}}, nil
}

// shells returns a /bin/sh program that runs the given texts.
func shells(texts map[string]dummy.Program, more map[string]dummy.Program) map[string]dummy.Program {
	all := map[string]dummy.Program{"/bin/sh": func(ctx context.Context, p *dummy.Proc) int {
		if f := texts[p.Args[len(p.Args)-1]]; f != nil {
			return f(ctx, p)
		}
		fmt.Fprintf(p.Stderr, "no such text %q", p.Args)
		return 127
	}}
	for k, v := range more {
		all[k] = v
	}
	return all
}

func reward(text string) dummy.Program {
	return func(_ context.Context, p *dummy.Proc) int {
		if err := p.Files.WriteFile("logs/verifier/reward.txt", []byte(text), 0o644); err != nil {
			fmt.Fprint(p.Stderr, err)
			return 1
		}
		return 0
	}
}

func exits(code int) dummy.Program {
	return func(_ context.Context, p *dummy.Proc) int {
		fmt.Fprintf(p.Stdout, "exit %d", code)
		return code
	}
}

func ask(ctx context.Context, p *dummy.Proc, text string) (int, string) {
	return chat(ctx, p, map[string]any{"model": p.Env["TURNGATE_MODEL"], "messages": []any{map[string]string{"role": "user", "content": text}}})
}

// chat posts a request of the chat dialect to the gate. It returns the status and the body.
func chat(ctx context.Context, p *dummy.Proc, request map[string]any) (int, string) {
	body, err := json.Marshal(request)
	if err != nil {
		return 0, err.Error()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(data)
}

// asks returns an agent that makes n calls.
func asks(n int) dummy.Program {
	return func(ctx context.Context, p *dummy.Proc) int {
		for i := range n {
			if status, text := ask(ctx, p, fmt.Sprintf("question %d", i)); status != 200 {
				fmt.Fprintln(p.Stderr, text)
				return 1
			}
		}
		return 0
	}
}

func TestRolloutFromRequestToReward(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"prepare": exits(0), "verify": reward("0.5")}, map[string]dummy.Program{"agent": asks(2)}))
	b.serve(t, ok)
	r := request("alpha-1")
	r.Setup = []schema.Command{{Run: "prepare"}}
	r.Group, r.Index, r.Labels = "g", 3, map[string]string{"a": "b"}
	res := b.result(t, r)
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 0.5 || res.Attempt != 1 || res.Worker != "w1" || res.Index != 3 || res.Labels["a"] != "b" {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
	if c := res.Calls[schema.TagAgent]; c.Count != 2 || c.CompletionTokens != 4 || len(res.Committed) != 2 {
		t.Errorf("calls %+v, committed %+v", res.Calls, res.Committed)
	}
	var names []string
	for _, p := range res.Phases {
		names = append(names, p.Name)
	}
	if strings.Join(names, " ") != "create upload setup[0] agent artifacts verify transcript" || res.Phases[2].Output != "exit 0" || res.Phases[2].Exit == nil {
		t.Errorf("phases %+v", res.Phases)
	}
	var transcript []byte
	for _, a := range res.Artifacts {
		if a.Name == res.Transcript {
			var err error
			if transcript, err = b.trainer.Artifact(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
	}
	z, err := zstd.NewReader(bytes.NewReader(transcript))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	lines, err := io.ReadAll(z)
	if err != nil || strings.Count(string(lines), "\n") != 4 || !strings.Contains(string(lines), "question 1") {
		t.Errorf("transcript %s, %v", lines, err)
	}
}

// TestOutcomes checks each outcome in the table of docs/protocol.md.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	forever := func(ctx context.Context, _ *dummy.Proc) int { <-ctx.Done(); return 1 }
	programs := shells(map[string]dummy.Program{
		"verify": reward("1"), "fails": exits(3), "no number": reward("much"), "nothing": exits(0),
	}, map[string]dummy.Program{"agent": asks(1), "crash": exits(9), "forever": forever, "greedy": asks(10)})
	b := newBench(t, programs, func(c *worker.Config) { c.Timing.Cap = 50 * time.Millisecond })
	b.serve(t, ok)
	for i, tt := range []struct {
		name   string
		change func(*schema.Request)
		status schema.Status
		reward float64 // -1: null
		code   string
		who    string
	}{
		{"agent fails", func(r *schema.Request) { r.Agent.Args[0] = "crash" }, schema.StatusDone, 1, schema.CodeExit, schema.WhoAgent},
		{"agent times out", func(r *schema.Request) { r.Agent.Args[0] = "forever"; r.Limits.AgentMS = 100 }, schema.StatusDone, 1, schema.CodeTimeout, schema.WhoAgent},
		{"call cap", func(r *schema.Request) { r.Agent.Args[0] = "greedy"; r.Gate.MaxCalls = 2 }, schema.StatusDone, 1, schema.CodeCallCap, schema.WhoAgent},
		{"no verifier", func(r *schema.Request) { r.Verify = nil }, schema.StatusDone, -1, "", ""},
		{"no number", func(r *schema.Request) { r.Verify.Run = "no number" }, schema.StatusFailed, -1, schema.CodeNoReward, schema.WhoTask},
		{"nothing", func(r *schema.Request) { r.Verify.Run = "nothing" }, schema.StatusFailed, -1, schema.CodeNoReward, schema.WhoTask},
		{"setup fails", func(r *schema.Request) { r.Setup = []schema.Command{{Run: "fails"}} }, schema.StatusFailed, -1, schema.CodeSetup, schema.WhoTask},
		{"engine that is not there", func(r *schema.Request) { r.Mode, r.Model.Upstream = schema.ModeProxy, "lab" }, schema.StatusFailed, -1, schema.CodeNoWorker, schema.WhoUser},
		{"network", func(r *schema.Request) { r.Sandbox.Network = "open" }, schema.StatusFailed, -1, schema.CodeNoWorker, schema.WhoUser},
		{"gpu", func(r *schema.Request) { r.Sandbox.GPUs = 1 }, schema.StatusFailed, -1, schema.CodeNoWorker, schema.WhoUser},
		{"no such bundle", func(r *schema.Request) { r.Task.Bundle = strings.Repeat("0", 64) }, schema.StatusFailed, -1, schema.CodeBadBundle, schema.WhoTask},
		{"no such program", func(r *schema.Request) { r.Agent.Args[0] = "missing" }, schema.StatusFailed, -1, schema.CodeMissing, schema.WhoUser},
		{"wish that an agent cannot honour", func(r *schema.Request) { r.Agent.MaxTurns = 3 }, schema.StatusFailed, -1, schema.CodeInvalid, schema.WhoUser},
		{"solution missing", func(r *schema.Request) { r.Agent = schema.AgentChoice{Name: "oracle"} }, schema.StatusFailed, -1, schema.CodeInvalid, schema.WhoTask},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(schema.ID(fmt.Sprintf("alpha-%d", i+1)))
			tt.change(&r)
			res := b.result(t, r)
			if res.Status != tt.status || (res.Reward == nil) != (tt.reward < 0) || res.Reward != nil && *res.Reward != tt.reward {
				t.Errorf("status %s, reward %v, fault %v", res.Status, res.Reward, res.Fault)
			}
			if tt.who == "" && res.Fault != nil || tt.who != "" && (res.Fault == nil || res.Fault.Who != tt.who || tt.code != "" && res.Fault.Code != tt.code) {
				t.Errorf("fault %+v", res.Fault)
			}
		})
	}
}

// TestAnAgentThatNoWorkerHasIsRefused: nothing is queued.
func TestAnAgentThatNoWorkerHasIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asks(1)}))
	for _, name := range []string{"nobody", "opencode"} {
		r := request("alpha-1")
		r.Agent.Name = name
		var invalid *schema.InvalidError
		if err := b.trainer.Submit(t.Context(), []schema.Request{r}); !errors.As(err, &invalid) || invalid.Field != "agent.name" || !strings.Contains(err.Error(), "command") {
			t.Errorf("got %v", err)
		}
	}
	if n := b.trainer.Outstanding(); n != 0 {
		t.Errorf("%d are outstanding", n)
	}
}

func TestNoTrainerFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asks(1)}))
	r := request("alpha-1")
	r.Gate.WaitMS = 400
	r.Shard = "elsewhere"
	b.trainer.Close() // no trainer answers; another process of the trainer reads the results
	second, err := trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", Shard: "other", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	res, err := second.NextResult(t.Context())
	if err != nil || res.Status != schema.StatusFailed || res.Fault.Code != schema.CodeNoTrainer || res.Reward != nil {
		t.Fatalf("got %+v, %v", res, err)
	}
}

func TestTheAgentsClockStandsWhileATrainerHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asks(1)}))
	b.trainer.Hold(trainer.Selection{})
	b.serve(t, ok)
	time.AfterFunc(2500*time.Millisecond, b.trainer.Resume) // longer than the agent's time limit
	r := request("alpha-1")
	r.Limits.AgentMS = 1000
	if res := b.result(t, r); res.Fault != nil || res.Exit.TimedOut || *res.Reward != 1 {
		t.Fatalf("got %+v, fault %v", res.Exit, res.Fault)
	}
}

func TestHostileStringsAreCarriedThrough(t *testing.T) {
	t.Parallel()
	hostile := "-- \"q\" 's' $(touch x) `id`\n\\ \t--help\u2028"
	var got, model string
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(_ context.Context, p *dummy.Proc) int {
		data, err := io.ReadAll(p.Stdin)
		if err != nil {
			return 1
		}
		got, model = string(data), p.Env["TURNGATE_MODEL"]
		return 0
	}}))
	r := request("alpha-1")
	r.Task.Name, r.Task.Instruction, r.Model.Name = hostile, hostile, hostile
	res := b.result(t, r)
	if got != hostile || model != hostile || res.Task != hostile || res.Status != schema.StatusDone {
		t.Fatalf("instruction %q, model %q, task %q", got, model, res.Task)
	}
}

func TestTheKeyIsInNoLogEventOrResult(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 1)
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": func(ctx context.Context, p *dummy.Proc) int {
		key := p.Env["OPENAI_API_KEY"]
		keys <- key
		fmt.Fprintln(p.Stdout, "my key is", key)
		fmt.Fprintln(p.Stderr, "my key is", key)
		status, _ := ask(ctx, p, "the environment has "+key)
		return status
	}}))
	b.serve(t, ok)
	var events []schema.Event
	watched := make(chan struct{})
	tap, err := b.nats.Ops(t).Events.Tap(t.Context(), "alpha-1")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(watched)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_ = tap.Run(ctx, func(_ broker.Place, e schema.Event) {
			if events = append(events, e); e.Type == schema.EventResult {
				cancel()
			}
		})
	}()
	res := b.result(t, request("alpha-1"))
	<-watched
	key := <-keys
	everything := map[string]any{"result": res, "events": events}
	for _, a := range res.Artifacts {
		data, err := b.trainer.Artifact(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(a.Name, ".zst") {
			z, err := zstd.NewReader(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if data, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
			z.Close()
		}
		everything[a.Name] = string(data)
	}
	all, err := json.Marshal(everything)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(all, []byte(key)) || !bytes.Contains(all, []byte("[key]")) || len(events) < 8 {
		t.Fatalf("the key %s is in %s", key, all)
	}
}
