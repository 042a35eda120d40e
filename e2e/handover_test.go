package e2e_test

import (
	"context"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/collector"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// upgrade is a worker of processes that follow each other, with the trainer of its rollouts.
type upgrade struct {
	*bench
	*load
	sandbox, state string
}

func newUpgrade(t *testing.T, sandbox string) *upgrade {
	t.Helper()
	b := newBench(t)
	b.need(t, sandbox, "mini")
	return &upgrade{bench: b, load: newLoad(t, sandbox, b.nats.Trainer(t, "local")), sandbox: sandbox, state: filepath.Join(t.TempDir(), "worker")}
}

// process starts a process of the worker with two slots.
func (u *upgrade) process(t *testing.T, flags ...string) *process {
	t.Helper()
	return u.worker(t, "", append([]string{"--state", u.state, "--sandboxes", u.sandbox, "--slots", "2"}, flags...)...)
}

// load is the trainer local with its rollouts, each of which makes three calls.
type load struct {
	prefix  string // of the ids of these rollouts, since other tests look for the rests of theirs
	trainer *trainer.Trainer
	request schema.Request

	mu        sync.Mutex
	generated map[string]int                // generations, by the key of their call
	held      map[schema.ID]chan struct{}   // the second call of a rollout waits until it is closed
	waits     map[schema.ID]bool            // a second call waits
	results   map[schema.ID][]schema.Result // by rollout
}

// newLoad connects the trainer local through a connection.
func newLoad(t *testing.T, sandbox string, through *broker.Broker) *load {
	t.Helper()
	l := &load{
		prefix: "local-" + newWorkerName() + "-", generated: map[string]int{}, held: map[schema.ID]chan struct{}{},
		waits: map[schema.ID]bool{}, results: map[schema.ID][]schema.Result{},
	}
	dir := copyTask(t, "examples/tasks/hello", map[string]string{"replay.yaml": "steps:\n- run: \"true\"\n- run: \"echo 'Hello, world!' > hello.txt\"\n- text: Done.\n"})
	script, err := replay.Load(filepath.Join(dir, "replay.yaml"))
	harness.Must(t, err)
	task, err := tasks.Load(dir, tasks.Options{})
	harness.Must(t, err)
	l.trainer, err = trainer.Dial(t.Context(), trainer.Config{Broker: through, Name: "local", Log: zerolog.Nop()})
	harness.Must(t, err)
	l.request = task.Request
	l.request.Agent.Name, l.request.Sandbox.Backend = "mini", sandbox
	if sandbox == "docker" {
		l.request.Sandbox.Image = testenv.Image(t)
	}
	l.request.Task.Bundle, err = l.trainer.PutBundle(t.Context(), task.Bundle)
	harness.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = l.trainer.Serve(ctx, trainer.Whole(func(ctx context.Context, c *schema.Call) (*schema.Reply, error) { return l.answer(ctx, script, c) }))
	})
	serving.Go(func() {
		for {
			r, err := l.trainer.NextResult(ctx)
			if err != nil {
				return
			}
			l.mu.Lock()
			l.results[r.ID] = append(l.results[r.ID], r)
			l.mu.Unlock()
		}
	})
	t.Cleanup(func() { stop(); serving.Wait(); l.trainer.Close() })
	return l
}

// answer answers a call from the script. The second call of a rollout that is held waits.
func (l *load) answer(ctx context.Context, script *replay.Script, c *schema.Call) (*schema.Reply, error) {
	l.mu.Lock()
	l.generated[c.Key]++
	id, number, _ := strings.Cut(c.Key, "/")
	hold := l.held[schema.ID(id)]
	if _, number, _ = strings.Cut(number, "/"); number != "2" {
		hold = nil
	}
	if hold != nil {
		l.waits[schema.ID(id)] = true
	}
	l.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return script.Answer(ctx, c)
}

// id returns the id of a rollout.
func (l *load) id(number int) schema.ID { return schema.ID(l.prefix + strconv.Itoa(number)) }

// submit submits a rollout. With hold, it waits until the second call of its agent has no
// answer, which release gives.
func (l *load) submit(t *testing.T, id schema.ID, hold bool) (release func()) {
	t.Helper()
	r, wait := l.request, make(chan struct{})
	r.ID, r.Trainer = id, "local"
	if hold {
		l.mu.Lock()
		l.held[id] = wait
		l.mu.Unlock()
	}
	harness.Must(t, l.trainer.Submit(t.Context(), []schema.Request{r}))
	if hold {
		harness.Eventually(t, "a call in flight of "+string(id), 5*time.Minute, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.waits[id]
		})
	}
	return sync.OnceFunc(func() { close(wait) })
}

// ends waits for the result of a rollout, and checks it and that each of its calls was
// generated once.
func (l *load) ends(t *testing.T, id schema.ID, attempt int) {
	t.Helper()
	harness.Eventually(t, "the result of "+string(id), 5*time.Minute, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.results[id]) > 0
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	one(t, l.results[id], attempt, 3)
	for key, n := range l.generated {
		if strings.HasPrefix(key, string(id)+"/") && n != 1 {
			t.Errorf("call %s was generated %d times", key, n)
		}
	}
}

// began reports whether a call of a rollout has come.
func (l *load) began(id schema.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range maps.Keys(l.generated) {
		if strings.HasPrefix(key, string(id)+"/") {
			return true
		}
	}
	return false
}

// exits waits until a process has ended by itself.
func exits(t *testing.T, p *process) {
	t.Helper()
	if code := p.wait(t, 5*time.Minute); code != 0 {
		t.Errorf("it ended with status %d", code)
	}
}

func runs(p *process, id schema.ID) bool {
	for line := range strings.Lines(p.err.String()) {
		if strings.Contains(line, "rollout begins") && strings.Contains(line, `"`+string(id)+`"`) {
			return true
		}
	}
	return false
}

// TestAHandOverCostsNoRollout lets a worker's process follow another one twice, each time
// with a call in flight. The processes have two slots together.
func TestAHandOverCostsNoRollout(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"local", "docker"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, sandbox)
			first := u.process(t, "--handover") // there is none to follow
			end1 := u.submit(t, u.id(1), true)
			second := u.process(t, "--handover")
			u.submit(t, u.id(2), false)
			u.ends(t, u.id(2), 1)
			end3 := u.submit(t, u.id(3), true) // both slots are used
			if !runs(second, u.id(2)) || !runs(second, u.id(3)) || runs(first, u.id(2)) || runs(first, u.id(3)) {
				t.Error("the process that retired took a rollout")
			}
			u.submit(t, u.id(4), false)
			third := u.process(t, "--handover")
			ops := u.nats.Ops(t)
			harness.Eventually(t, "the three processes in the list", 5*time.Minute, func() bool {
				all, err := ops.Records.Workers(t.Context())
				if err != nil {
					return false
				}
				running, draining, full := 0, 0, 0
				for _, p := range all {
					running += len(p.Running)
					if p.Draining {
						draining++
					}
					if strings.Contains(p.Full, "an earlier process of this worker still runs 2 rollouts") {
						full++
					}
				}
				return len(all) == 3 && running == 2 && draining == 2 && full == 1
			})
			if u.began(u.id(4)) {
				t.Error("three rollouts ran in two slots")
			}
			end1()
			exits(t, first)
			u.ends(t, u.id(1), 1)
			u.ends(t, u.id(4), 1)
			if !runs(third, u.id(4)) {
				t.Error("the last process did not take the rollout")
			}
			end3()
			exits(t, second)
			u.ends(t, u.id(3), 1)
			third.stop(t)
			for _, id := range []schema.ID{u.id(1), u.id(2), u.id(3), u.id(4)} {
				nothingLeft(t, sandbox, id)
			}
			left, err := filepath.Glob(filepath.Join(u.state, "processes", "*.json"))
			if err != nil || len(left) > 0 {
				t.Errorf("records are left: %v, %v", left, err)
			}
		})
	}
}

// TestAProcessIsKilledThatRetired kills the process that was followed, with a call in
// flight. The one that followed it removes its sandbox and takes its rollout over at once.
func TestAProcessIsKilledThatRetired(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"local", "docker"} {
		t.Run(sandbox, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, sandbox)
			first := u.process(t)
			end := u.submit(t, u.id(1), true)
			second := u.process(t, "--handover")
			end2 := u.submit(t, u.id(2), true)
			harness.Must(t, first.cmd.Process.Kill())
			harness.Eventually(t, "the take-over", 5*time.Minute, func() bool { return runs(second, u.id(1)) })
			end()
			u.ends(t, u.id(1), 2)
			state, err := u.nats.Ops(t).Records.State(t.Context(), u.id(1))
			if err != nil || state.Attempt != 2 || state.Tries != 2 {
				t.Errorf("state %+v, %v", state, err)
			}
			nothingLeft(t, sandbox, u.id(1)) // of both attempts
			end2()
			u.ends(t, u.id(2), 1)
			second.stop(t)
			nothingLeft(t, sandbox, u.id(2))
		})
	}
}

// TestTheProcessesOfAHandOverExportApart: the spans of each have a service.instance.id of their
// own, since the sums of metrics count from the start of a process.
func TestTheProcessesOfAHandOverExportApart(t *testing.T) {
	testenv.Slow(t)
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP)
	u := newUpgrade(t, "local")
	first := u.process(t)
	end := u.submit(t, u.id(1), true)
	second := u.process(t, "--handover")
	u.submit(t, u.id(2), false)
	u.ends(t, u.id(2), 1)
	end()
	u.ends(t, u.id(1), 1)
	exits(t, first)
	second.stop(t)
	wid := workerName(t, u.state)
	want, got := map[any]any{string(u.id(1)): wid, string(u.id(2)): wid + ".1"}, map[any]any{}
	for _, s := range c.Spans() {
		if s.Name == "attempt" {
			got[s.Of["turngate.rollout.id"]] = s.Resource["service.instance.id"]
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the instances are %v, want %v", got, want)
	}
}

// TestAWorkerIsNotFollowedByOneThatCannotStart: the process that runs goes on if the next
// one has a mistake.
func TestAWorkerIsNotFollowedByOneThatCannotStart(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	u := newUpgrade(t, "local")
	first := u.process(t)
	wid := workerName(t, u.state)
	for want, argv := range map[string][]string{
		"or let it follow that one with --handover": {"--creds", u.nats.AdmitWorker(t, wid)},
		"the worker that runs goes on":              {"--creds", u.nats.AdmitWorker(t, wid), "--handover", "--sandboxes", "e2b"},
		"belongs to the worker " + wid:              {"--creds", u.nats.AdmitWorker(t, newWorkerName()), "--handover"},
	} {
		p := start(t, append([]string{u.binary, "worker", "--nats", u.nats.URL(), "--state", u.state}, argv...)...)
		if code := p.wait(t, 5*time.Minute); code == 0 || !strings.Contains(p.err.String(), want) {
			t.Errorf("%v ended with status %d, want an error with %q", argv, code, want)
		}
	}
	u.submit(t, u.id(1), false)
	u.ends(t, u.id(1), 1)
	if strings.Contains(first.err.String(), "takes rollouts from now on") {
		t.Error("the process that runs has retired")
	}
}
