package jobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

// agent makes one call and ends. It fails if the answer says so.
func agent(ctx context.Context, p *dummy.Proc) int {
	body, err := json.Marshal(map[string]any{"model": p.Env["TURNGATE_MODEL"], "messages": []any{map[string]string{"role": "user", "content": "hi"}}})
	if err != nil {
		return 1
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 1
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 1
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || bytes.Contains(answer, []byte(`"fail"`)) {
		return 1
	}
	return 0
}

func verify(_ context.Context, p *dummy.Proc) int {
	if err := p.Files.WriteFile("logs/verifier/reward.txt", []byte("1"), 0o644); err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 1
	}
	return 0
}

// runWorker runs a worker with dummy sandboxes on a connection until stop is called.
func runWorker(nc *broker.Broker, upstreams ...models.Upstream) (stop func() error, err error) {
	backend := &dummy.Backend{Programs: map[string]dummy.Program{"agent": agent, "/bin/sh": verify}}
	dir, err := os.MkdirTemp("", "bundles-")
	if err != nil {
		return nil, err
	}
	cache, err := bundles.New(dir, 1<<30, zerolog.Nop())
	if err != nil {
		return nil, err
	}
	c := worker.Config{Slots: 2, Backends: []sandboxes.Backend{backend}, Agents: agents.All(), Bundles: cache, Upstreams: upstreams, Grace: time.Second, Log: zerolog.Nop()}
	timing := broker.DefaultTiming()
	side, err := queue.NewWorker(nc, queue.WorkerConfig{Worker: "w1", Instance: "i1", Slots: 2, Offer: c.Offer, Timing: timing})
	if err != nil {
		return nil, err
	}
	calls, err := modelcall.NewClient(nc, "w1", "i1")
	if err != nil {
		side.Close()
		return nil, err
	}
	w, err := worker.New(c, side, calls)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error {
		cancel()
		defer os.RemoveAll(dir)
		defer side.Close()
		defer calls.Close()
		return <-done
	}, nil
}

func startWorker(t *testing.T, n testenv.NATS, upstreams ...models.Upstream) {
	t.Helper()
	stop, err := runWorker(n.Worker(t, "w1"), upstreams...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func newTrainer(t *testing.T, n testenv.NATS) *trainer.Trainer {
	t.Helper()
	tr, err := trainer.Dial(t.Context(), trainer.Config{Broker: n.Trainer(t, "alpha"), Name: "alpha", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

// seen counts the calls of Progress by Run.
type seen struct{ events, calls, results, again, moved, pauses atomic.Int64 }

func (s *seen) Event(schema.Event)    { s.events.Add(1) }
func (s *seen) Call(schema.ID)        { s.calls.Add(1) }
func (s *seen) Result(*schema.Result) { s.results.Add(1) }

func (s *seen) Again(*schema.Result, schema.ID) { s.again.Add(1) }
func (s *seen) Moved(schema.ID, schema.ID)      { s.moved.Add(1) }
func (s *seen) Paused(bool)                     { s.pauses.Add(1) }

// rules make rollouts of the agent.
func rules(answer trainer.Answerer) jobs.Rules {
	return jobs.Rules{
		Trainer: "alpha",
		Load: func(dir string) (*tasks.Task, error) {
			q := harness.Request("")
			q.Agent, q.Verify = schema.AgentChoice{Name: "command", Args: []string{"agent"}}, &schema.Verify{Run: "verify"}
			return &tasks.Task{Dir: dir, Request: q}, nil
		},
		Request: func(t *tasks.Task, _ jobs.Variant) (schema.Request, error) { return t.Request, nil },
		Answer:  func(*tasks.Task, jobs.Variant) (trainer.Answerer, error) { return answer, nil },
	}
}

// begin begins a job with trials of one task.
func begin(t *testing.T, trials int, answer trainer.Answerer) *jobs.Work {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "command"}}, Backend: "dummy", Attempts: trials}
	w, err := jobs.Begin(t.Context(), filepath.Join(t.TempDir(), "job"), p, []jobs.Task{{Name: "task", Dir: "/tasks/task"}}, rules(answer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Job.Close)
	return w
}

func done(context.Context, *trainer.Call) (*schema.Reply, error) {
	return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
}

func TestAJobHasAResultOfEveryTrial(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	w, s := begin(t, 6, done), &seen{}
	j := w.Job
	if err := w.Run(t.Context(), newTrainer(t, n), jobs.Options{Progress: s}); err != nil {
		t.Fatal(err)
	}
	if len(j.Missing()) != 0 || s.results.Load() != 6 || s.calls.Load() != 6 || s.events.Load() == 0 {
		t.Errorf("%d trials are missing; reported are %d events, %d calls, %d results", len(j.Missing()), s.events.Load(), s.calls.Load(), s.results.Load())
	}
	for _, r := range j.Results() {
		if r.Status != schema.StatusDone || r.Fault != nil || r.Reward == nil || *r.Reward != 1 {
			t.Errorf("got %+v", r)
		}
	}
	if files, err := filepath.Glob(filepath.Join(j.Dir, "*", "agent", "trajectory.json")); err != nil || len(files) != 6 {
		t.Errorf("trajectories %v, %v", files, err)
	}
}

// TestAnInterruptEndsOpenAnswers interrupts a run with an engine that does not
// answer. Run ends at once and cancels the rollouts; the next run has new ones.
func TestAnInterruptEndsOpenAnswers(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	tr := newTrainer(t, n)
	asked := make(chan struct{}, 3)
	var open sync.WaitGroup
	w := begin(t, 3, func(ctx context.Context, _ *trainer.Call) (*schema.Reply, error) {
		open.Add(1)
		defer open.Done()
		asked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	go func() {
		<-asked
		<-asked
		interrupt(interrupted)
	}()
	if err := w.Run(ctx, tr, jobs.Options{Remote: true}); !errors.Is(err, interrupted) {
		t.Fatalf("got %v", err)
	}
	open.Wait()
	missing := w.Job.Missing()
	if len(missing) != 3 {
		t.Fatalf("%d trials are missing, want 3", len(missing))
	}
	for _, trial := range missing {
		if len(trial.Stopped) != 1 || trial.Stopped[0] == trial.Rollout {
			t.Errorf("the trial has no new rollout: %+v", trial)
		}
	}
	tr.Close()
	again, err := jobs.Resume(t.Context(), w.Job, rules(done), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &seen{}
	if err := again.Run(t.Context(), newTrainer(t, n), jobs.Options{Progress: s}); err != nil || s.results.Load() != 3 || len(w.Job.Missing()) != 0 {
		t.Errorf("the next run: %v, %d results", err, s.results.Load())
	}
}

// TestABrokenFolderEndsARun checks that an error of the job's folder is returned,
// and is not lost behind rollouts that go on.
func TestABrokenFolderEndsARun(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	startWorker(t, n)
	w := begin(t, 2, done)
	if err := os.Rename(w.Job.Dir, w.Job.Dir+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	var wrong *os.PathError
	if err := w.Run(t.Context(), newTrainer(t, n), jobs.Options{Remote: true}); !errors.As(err, &wrong) {
		t.Errorf("got %v", err)
	}
}

func TestRolloutIDs(t *testing.T) {
	group := jobs.NewGroup()
	id, err := jobs.RolloutID("alpha", group, 3, 1)
	if want := schema.ID("alpha-" + group[10:] + "-3-1"); err != nil || id != want || id.Trainer() != "alpha" {
		t.Errorf("got %s, %v, want %s", id, err, want)
	}
	if _, err := jobs.RolloutID("a b", group); err == nil {
		t.Error("a trainer with a space was accepted")
	}
}

// TestRulesNeedARequest: the other functions have defaults, with which a task that
// does not load is refused.
func TestRulesNeedARequest(t *testing.T) {
	list, err := jobs.Find([]string{t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	dir, p := filepath.Join(t.TempDir(), "job"), jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Attempts: 1}
	var invalid *schema.InvalidError
	if _, err := jobs.Begin(t.Context(), dir, p, list, jobs.Rules{Trainer: "alpha"}); !errors.As(err, &invalid) || invalid.Field != "Rules.Request" {
		t.Errorf("got %v", err)
	}
	var refused *jobs.RefusedError
	r := jobs.Rules{Trainer: "alpha", Request: func(t *tasks.Task, _ jobs.Variant) (schema.Request, error) { return t.Request, nil }}
	if _, err := jobs.Begin(t.Context(), dir, p, list, r); !errors.As(err, &refused) || len(refused.Faults) != 1 || refused.Faults[0].Who != schema.WhoTask {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
}
