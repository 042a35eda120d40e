package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// serveMetrics serves the worker's metrics and returns their URL.
func (b *bench) serveMetrics(t *testing.T) string {
	t.Helper()
	b.metrics.WatchWorker(b.worker.State)
	s, err := telemetry.Listen(telemetry.Config{Address: "127.0.0.1:0", Metrics: b.metrics, Log: zerolog.Nop()})
	harness.Must(t, err)
	s.Ready(b.worker.Ready)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		harness.Must(t, <-done)
	})
	return "http://" + s.Address()
}

// scrape reads the metrics of turngate as a Prometheus server does. The key of a value
// is the metric with its labels, such as `x{a="b"}`; that of a histogram is its count.
func scrape(t *testing.T, url string) map[string]float64 {
	t.Helper()
	status, text := harness.Get(t, url+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	harness.Must(t, err)
	out := map[string]float64{}
	for name, f := range families {
		if !strings.HasPrefix(name, "turngate_") {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				out[key] = float64(m.Histogram.GetSampleCount())
			case dto.MetricType_COUNTER:
				out[key] = m.Counter.GetValue()
			default:
				out[key] = m.Gauge.GetValue()
			}
		}
	}
	return out
}

// TestMetricsAfterKnownRollouts compares all metrics of a worker after three rollouts
// with the numbers that these must give.
func TestMetricsAfterKnownRollouts(t *testing.T) {
	t.Parallel()
	programs := shells(map[string]dummy.Program{"prepare": exits(0), "verify": reward("1"), "nothing": exits(0)}, map[string]dummy.Program{"agent": asks(2), "refused": asks(1)})
	b := newBench(t, programs)
	url := b.serveMetrics(t)
	b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		if strings.HasPrefix(c.Key, "alpha-2/") {
			f := schema.Faultf("call", "evil_"+strings.Repeat("x", 20), schema.WhoTrainer, "no")
			f.Status = http.StatusBadRequest
			return nil, f
		}
		return ok(ctx, c)
	})
	first := request("alpha-1")
	first.Setup = []schema.Command{{Run: "prepare"}}
	second := request("alpha-2")
	second.Agent.Args[0] = "refused"
	third := request("alpha-3")
	third.Verify.Run = "nothing"
	for _, r := range []schema.Request{first, second, third} {
		b.result(t, r)
	}
	b.stop() // so that the worker has recorded all that it did
	got := scrape(t, url)
	want := map[string]float64{
		`turngate_build_info{version="test"}`:                                 1,
		`turngate_attempts_total{attempt="first"}`:                            3,
		`turngate_attempts_ended_total{end="result"}`:                         3,
		`turngate_rollouts_total{fault="",status="done"}`:                     1,
		`turngate_rollouts_total{fault="refused",status="done"}`:              1,
		`turngate_rollouts_total{fault="no_reward",status="failed"}`:          1,
		`turngate_rollout_schedule_to_start_seconds`:                          3,
		`turngate_takeovers_total`:                                            0,
		`turngate_model_calls_total{fault="",outcome="answered"}`:             4,
		`turngate_model_calls_total{fault="other",outcome="failed"}`:          1,
		`turngate_model_call_seconds{part="answer"}`:                          5,
		`turngate_model_call_seconds{part="wait"}`:                            5,
		`turngate_model_calls_open`:                                           0,
		`turngate_model_tokens_total{kind="prompt"}`:                          20,
		`turngate_model_tokens_total{kind="completion"}`:                      8,
		`turngate_tool_call_seconds`:                                          0,
		`turngate_verify_call_seconds`:                                        0,
		`turngate_phase_seconds{phase="create"}`:                              3,
		`turngate_phase_seconds{phase="upload"}`:                              3,
		`turngate_phase_seconds{phase="setup"}`:                               1,
		`turngate_phase_seconds{phase="agent"}`:                               3,
		`turngate_phase_seconds{phase="artifacts"}`:                           3,
		`turngate_phase_seconds{phase="verify"}`:                              3,
		`turngate_phase_seconds{phase="transcript"}`:                          3,
		`turngate_phases_failed_total{fault="no_reward",phase="verify"}`:      1,
		`turngate_sandboxes_created_total{backend="dummy",outcome="created"}`: 3,
		`turngate_sandboxes{backend="dummy"}`:                                 0,
		`turngate_worker_slots{state="free"}`:                                 2,
		`turngate_worker_slots{state="busy"}`:                                 0,
		`turngate_worker_slots{state="suspended"}`:                            0,
		`turngate_worker_ready`:                                               0,
		`turngate_worker_holds`:                                               0,
		`turngate_worker_full{reason="disk"}`:                                 0,
		`turngate_worker_full{reason="memory"}`:                               0,
		`turngate_worker_full{reason="auto"}`:                                 0,
		`turngate_worker_full{reason="process"}`:                              0,
		`turngate_backend_failing{backend="dummy"}`:                           0,
		`turngate_bundle_cache_bytes`:                                         0,
		`turngate_bundle_cache_opens_total{result="hit"}`:                     0,
		`turngate_bundle_cache_opens_total{result="miss"}`:                    0,
	}
	delete(got, "turngate_lease_renewals_failed_total") // a busy machine may have some
	for _, key := range []string{"turngate_gate_received_bytes_total", "turngate_gate_sent_bytes_total", "turngate_transcript_bytes_total"} {
		if got[key] < 100 {
			t.Errorf("%s is %v", key, got[key])
		}
		delete(got, key)
	}
	for key, n := range got { // a wait that began and ended leaves a 0
		if strings.HasPrefix(key, "turngate_model_calls_waiting{") && n == 0 {
			delete(got, key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if n, known := want[key]; !known || n != got[key] {
			t.Errorf("%s is %v, want %v", key, got[key], n)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is missing", key)
	}
}

// TestACallThatWaitsIsCounted shows the open calls and their reasons while one call is held
// back and another waits for the session's slot.
func TestACallThatWaitsIsCounted(t *testing.T) {
	t.Parallel()
	both := func(ctx context.Context, p *dummy.Proc) int {
		other := make(chan int, 1)
		go func() { status, _ := ask(ctx, p, "question 1"); other <- status }()
		status, _ := ask(ctx, p, "question 2")
		if status != http.StatusOK || <-other != http.StatusOK {
			return 1
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": both}))
	url := b.serveMetrics(t)
	w := b.waits(t)
	seen := make(chan struct{})
	b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		select {
		case <-seen:
			return ok(ctx, c)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	r := request("alpha-1")
	r.Gate.MaxParallel = 1
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{r}))
	w.until(t, "the wait for a slot", has(func(e schema.WaitEvent) bool { return e.For == schema.WaitSlot && !e.Ended }))
	want := map[string]float64{
		`turngate_model_calls_waiting{for="slot"}`: 1, `turngate_model_calls_open`: 1, `turngate_worker_slots{state="busy"}`: 1, `turngate_worker_slots{state="free"}`: 1,
		`turngate_sandboxes{backend="dummy"}`: 1, `turngate_worker_ready`: 1,
	}
	harness.Eventually(t, "one open and one waiting call", 5*time.Minute, func() bool { // the other call may be about to begin
		got := scrape(t, url)
		return !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(key string) bool { return got[key] != want[key] })
	})
	close(seen)
	if res := b.next(t); res.Exit == nil || !res.Exit.OK() {
		t.Errorf("got %+v", res)
	}
	b.stop()
	if got := scrape(t, url); got[`turngate_model_calls_waiting{for="slot"}`] != 0 || got[`turngate_model_calls_open`] != 0 {
		t.Errorf("after the end: %v", got)
	}
}

// TestAFullDiskIsAMetric fills the disk of a worker's host and makes room again. The
// worker stays ready: only the metric of its disk tells that it takes no rollout.
func TestAFullDiskIsAMetric(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(50 << 30)
	room := worker.NewRoom(worker.RoomConfig{Look: func() worker.Host {
		return worker.Host{Memory: 8 << 30, FreeMemory: 4 << 30, KeepMemory: 512 << 20, Disk: 100 << 30, FreeDisk: free.Load(), KeepDisk: 1 << 30}
	}})
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) { c.Room = room })
	url := b.serveMetrics(t)
	shows := func(disk int64, full float64) {
		t.Helper()
		want := map[string]float64{
			`turngate_worker_full{reason="disk"}`: full, `turngate_worker_full{reason="memory"}`: 0, `turngate_worker_ready`: 1,
			`turngate_worker_free_bytes{of="disk"}`: float64(disk), `turngate_worker_keep_free_bytes{of="disk"}`: 1 << 30,
			`turngate_worker_free_bytes{of="memory"}`: 4 << 30, `turngate_worker_keep_free_bytes{of="memory"}`: 512 << 20,
		}
		harness.Eventually(t, fmt.Sprintf("the metrics of a disk with %d free bytes", disk), 5*time.Minute, func() bool {
			got := scrape(t, url)
			return !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(key string) bool { return got[key] != want[key] })
		})
	}
	shows(50<<30, 0)
	free.Store(10 << 20)
	shows(10<<20, 1)
	free.Store(50 << 30)
	shows(50<<30, 0)
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone {
		t.Errorf("with room again: %s, %+v", res.Status, res.Fault)
	}
}

// TestReadiness takes the server away from a worker, brings it back, and stops the
// worker while a rollout runs.
func TestReadiness(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	waits := func(ctx context.Context, _ *dummy.Proc) int {
		close(begun)
		select {
		case <-end:
		case <-ctx.Done():
			return 1
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0), "waits": waits}))
	url := b.serveMetrics(t)
	ready := func(want string) {
		t.Helper()
		harness.Eventually(t, "/readyz: "+want, 5*time.Minute, func() bool {
			status, text := harness.Get(t, url+"/readyz")
			return (status == http.StatusOK) == (want == "ready") && strings.Contains(text, want)
		})
	}
	ready("ready")
	b.nats.Shutdown()
	ready("no connection to NATS")
	if status, text := harness.Get(t, url+"/livez"); status != http.StatusOK || text != "ok\n" {
		t.Errorf("/livez: %d %s", status, text)
	}
	b.nats.Again(t)
	ready("ready")
	r := request("alpha-1")
	r.Agent.Args[0] = "waits"
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{r}))
	<-begun
	stopped := make(chan struct{})
	go func() { defer close(stopped); b.stop() }()
	ready("it stops")
	close(end)
	<-stopped
	if res := b.next(t); res.Exit == nil || !res.Exit.OK() {
		t.Errorf("got %+v", res)
	}
}

// TestToolsVerificationsAndHoldsAreCounted lets an agent call two tools of the trainer,
// of which one fails, and the trainer verify and hold.
func TestToolsVerificationsAndHoldsAreCounted(t *testing.T) {
	t.Parallel()
	calls := func(ctx context.Context, p *dummy.Proc) int {
		for _, tool := range []string{"good", "bad", "unknown"} {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(p.Env["OPENAI_BASE_URL"], "/v1")+gate.ToolsPath+"/"+tool, strings.NewReader("{}"))
			if err != nil {
				return 1
			}
			req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return 1
			}
			_ = res.Body.Close()
		}
		return 0
	}
	b := newBench(t, map[string]dummy.Program{"agent": calls}, func(c *worker.Config) {
		c.Agents = slices.Clone(c.Agents)
		for i := range c.Agents {
			c.Agents[i].MCP = true // so that the agent command may have a tool
		}
	})
	url := b.serveMetrics(t)
	b.trainer.Close()
	var err error
	b.trainer, err = trainer.Dial(t.Context(), trainer.Config{
		Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop(),
		Tools: map[string]trainer.Tool{
			"good": func(context.Context, *trainer.ToolCall) (string, error) { return "yes", nil },
			"bad": func(context.Context, *trainer.ToolCall) (string, error) {
				return "", errors.New("no")
			},
		},
		Verify: func(context.Context, *trainer.Handle) (*schema.Verdict, error) {
			return &schema.Verdict{Reward: number(1)}, nil
		},
	})
	harness.Must(t, err)
	t.Cleanup(b.trainer.Close)
	b.serve(t, ok)
	r := byTrainer("alpha-1")
	r.Agent.Tools = []schema.ToolSpec{{Name: "good", Parameters: json.RawMessage(`{"type":"object"}`)}, {Name: "bad", Parameters: json.RawMessage(`{"type":"object"}`)}}
	if res := b.result(t, r); res.Status != schema.StatusDone || res.Reward == nil || *res.Reward != 1 {
		t.Errorf("status %s, fault %v", res.Status, res.Fault)
	}
	b.trainer.Hold(trainer.Selection{})
	harness.Eventually(t, "the trainer's hold", 5*time.Minute, func() bool { return scrape(t, url)["turngate_worker_holds"] == 1 })
	b.trainer.Resume()
	harness.Eventually(t, "the end of the hold", 5*time.Minute, func() bool { return scrape(t, url)["turngate_worker_holds"] == 0 })
	b.stop()
	got := scrape(t, url)
	for key, want := range map[string]float64{
		`turngate_tool_calls_total{fault="",outcome="answered"}`: 1, `turngate_tool_calls_total{fault="",outcome="error"}`: 1, `turngate_tool_call_seconds`: 2,
		`turngate_verify_calls_total{fault="",outcome="answered"}`: 1, `turngate_verify_call_seconds`: 1,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}
