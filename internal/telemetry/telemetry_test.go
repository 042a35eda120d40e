package telemetry_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md anew") //nolint:gochecknoglobals // a flag

// all has every metric of turngate.
func all() (m *telemetry.Metrics, r *telemetry.Rollouts, q *telemetry.Queue) {
	m = telemetry.New("test")
	r, q = m.Rollouts(), m.Queue()
	m.WatchWorker(func() telemetry.Worker { return telemetry.Worker{} })
	m.WatchBacklog(func(context.Context) (telemetry.Backlog, error) { return telemetry.Backlog{}, nil })
	m.WatchStore(func() (free, size int64) { return 0, 0 })
	m.HTTP()
	m.Answers()
	m.Lines(1)
	return m, r, q
}

// serve serves metrics until the test ends and returns the server's URL.
func serve(t *testing.T, m *telemetry.Metrics, pprof bool) (*telemetry.Server, string) {
	t.Helper()
	s, err := telemetry.Listen(telemetry.Config{Address: "127.0.0.1:0", Metrics: m, Pprof: pprof, Log: zerolog.Nop()})
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		harness.Must(t, <-done)
	})
	return s, "http://" + s.Address()
}

// TestTheTableOfMetricsIsTrue compares docs/metrics.md with the metrics.
func TestTheTableOfMetricsIsTrue(t *testing.T) {
	m, _, _ := all()
	var table strings.Builder
	table.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, x := range m.List() {
		labels := "`" + strings.Join(x.Labels, "`, `") + "`"
		if len(x.Labels) == 0 {
			labels = ""
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", x.Name, x.Type, labels, x.Help)
	}
	path := filepath.Join(testenv.Root(t), "docs", "metrics.md")
	page, err := os.ReadFile(path)
	harness.Must(t, err)
	const begin, end = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("docs/metrics.md has no place for the table")
	}
	want := before + begin + table.String() + end + after
	if *update {
		harness.Must(t, os.WriteFile(path, []byte(want), 0o644))
	} else if want != string(page) {
		t.Error("docs/metrics.md differs from the metrics: go test ./internal/telemetry -run TheTableOfMetrics -update")
	}
	names := regexp.MustCompile(`^turngate_[a-z_]+$`)
	seen := map[string]bool{}
	for _, x := range m.List() {
		if !names.MatchString(x.Name) || seen[x.Name] || (x.Type == "counter") != strings.HasSuffix(x.Name, "_total") || x.Type == "histogram" && !strings.HasSuffix(x.Name, "_seconds") {
			t.Errorf("the name of %+v", x)
		}
		seen[x.Name] = true
	}
}

// TestEveryMetricIsListed compares the list with the registry's own descriptions.
func TestEveryMetricIsListed(t *testing.T) {
	m, _, _ := all()
	var listed []string
	for _, x := range m.List() {
		listed = append(listed, x.Name)
	}
	described := m.Described()
	slices.Sort(listed)
	if got := strings.Join(described, " "); got != strings.Join(listed, " ") {
		t.Errorf("the registry has %s, listed are %s", got, listed)
	}
}

// TestNothingIsRecordedWithoutMetrics calls each method on nil.
func TestNothingIsRecordedWithoutMetrics(t *testing.T) {
	var r *telemetry.Rollouts
	var q *telemetry.Queue
	r.PhaseEnded("agent", time.Second, nil)
	r.SandboxMade("docker", telemetry.SandboxCreated)
	r.SandboxClosed("docker")
	r.ToolEnded(time.Second, true, nil)
	r.VerifyEnded(time.Second, nil)
	r.Carried(1, 1)
	r.TranscriptMade(1)
	q.RolloutEnded(schema.StatusDone, nil)
	q.AttemptBegan(1)
	q.AttemptEnded(telemetry.EndResult)
	q.Started(time.Second)
	q.TookOver()
	q.Parked(true)
	q.LeaseFailed()
	var h *telemetry.HTTP
	h.StreamBegan(nil)()
	h.Serve(nil, http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), nil)
	var a *telemetry.Answers
	a.Began(t.Context())(nil, nil)
	var l *telemetry.Lines
	l.LineBegan(schema.CanSandbox)("", false)
	l.LineRefused(schema.CanSandbox, schema.LineFull)
	l.Operated("click", "")
	c := r.Calls()
	c.Began(1)
	c.Waits(&schema.WaitEvent{Call: 1})
	c.Ended(1, time.Second, nil, nil)
	if c != nil {
		t.Error("calls are followed without metrics")
	}
}

// TestLabelsAreBounded lets a trainer and a task choose codes and names.
func TestLabelsAreBounded(t *testing.T) {
	m, r, q := all()
	_, url := serve(t, m, false)
	for i := range 5000 {
		name := fmt.Sprintf("mine-%d\n\x1b[31m\"}", i)
		f := &schema.Fault{Code: name, Stage: name, Message: name}
		c := r.Calls()
		c.Began(i)
		c.Ended(i, time.Second, &schema.Reply{Usage: schema.Usage{PromptTokens: -5}}, f)
		r.ToolEnded(time.Second, false, f)
		r.VerifyEnded(-time.Second, f)
		r.PhaseEnded("step/"+name+"/verify", time.Second, f)
		r.PhaseEnded(name, time.Second, f)
		r.PhaseEnded(fmt.Sprintf("setup[%d]", i), time.Second, nil)
		q.RolloutEnded(schema.Status(name), f)
		q.RolloutEnded(schema.StatusDone, f)
	}
	status, text := harness.Get(t, url+"/metrics")
	if status != http.StatusOK || strings.Contains(text, "mine") || strings.Contains(text, "\x1b") {
		t.Errorf("a text of a trainer is a label (status %d)", status)
	}
	if n := strings.Count(text, "\nturngate_"); n > 300 {
		t.Errorf("there are %d series", n)
	}
	for _, want := range []string{
		`turngate_phase_seconds_count{phase="verify"} 5000`, `turngate_phase_seconds_count{phase="setup"} 5000`, `turngate_phase_seconds_count{phase="other"} 5000`,
		`turngate_rollouts_total{fault="other",status="other"} 5000`, `turngate_model_calls_total{fault="other",outcome="failed"} 5000`, "turngate_model_calls_open 0",
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// TestLabelsOfAnswersAndLinesAreBounded lets a source of answers and a client of a machine
// choose texts.
func TestLabelsOfAnswersAndLinesAreBounded(t *testing.T) {
	m := telemetry.New("test")
	a, l := m.Answers(), m.Lines(3)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 1000 {
		name := fmt.Sprintf("mine-%d", i)
		a.Began(t.Context())(nil, fmt.Errorf("%s: %w", name, &schema.Fault{Code: name}))
		l.LineRefused(name, name)
		l.LineBegan(name)(name, true)
		l.Operated(name, name)
	}
	a.Began(t.Context())(&schema.Reply{Usage: schema.Usage{PromptTokens: 5, CompletionTokens: 2}}, nil)
	a.Began(t.Context())(nil, &schema.Fault{Code: schema.CodeUpstream})
	a.Began(t.Context())(nil, errors.New("mine"))
	a.Began(over)(&schema.Reply{Usage: schema.Usage{PromptTokens: 5}}, nil)
	a.Began(t.Context())
	l.LineBegan(schema.CanSandbox)("", false)
	l.LineBegan(schema.CanSandbox)("", true)
	l.LineBegan(schema.CanSandbox)(schema.LineSilent, true)
	l.LineBegan(schema.CanWorkspace)
	l.Operated("click", "")
	l.Operated("click", "consent")
	testenv.ShowsMetrics(t, m,
		`turngate_answers_total{fault="other",outcome="failed"} 1000`, `turngate_answers_total{fault="",outcome="answered"} 1`, `turngate_answers_total{fault="upstream",outcome="failed"} 1`, `turngate_answers_total{fault="internal",outcome="failed"} 1`,
		`turngate_answers_total{fault="",outcome="unwanted"} 1`, "turngate_answers_open 1", "turngate_answer_seconds_count 1004", `turngate_answer_tokens_total{kind="prompt"} 5`, `turngate_answer_tokens_total{kind="completion"} 2`,
		"turngate_machine_slots 3", `turngate_machine_lines_refused_total{kind="other",reason="other"} 1000`, `turngate_machine_lines_total{kind="other",outcome="closed"} 1000`,
		`turngate_machine_lines_total{kind="sandbox",outcome="ended"} 1`, `turngate_machine_lines_total{kind="sandbox",outcome="failed"} 1`, `turngate_machine_lines_total{kind="sandbox",outcome="silent"} 1`,
		`turngate_machine_lines_open{kind="workspace"} 1`, `turngate_machine_lines_open{kind="sandbox"} 0`, `turngate_machine_line_seconds_count{kind="sandbox"} 3`,
		`turngate_machine_desktop_operations_total{operation="other",outcome="other"} 1000`, `turngate_machine_desktop_operations_total{operation="click",outcome="done"} 1`, `turngate_machine_desktop_operations_total{operation="click",outcome="consent"} 1`,
	)
	_, url := serve(t, m, false)
	if _, text := harness.Get(t, url+"/metrics"); strings.Contains(text, "mine") {
		t.Error("a text of others is a label")
	}
}

// TestEveryFaultOfTurngateHasItsLabel reads the table of docs/faults.md.
func TestEveryFaultOfTurngateHasItsLabel(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "faults.md"))
	harness.Must(t, err)
	_, table, ok := strings.Cut(string(page), "\n## Codes\n")
	if !ok {
		t.Fatal("docs/faults.md has no codes")
	}
	m, _, q := all()
	_, url := serve(t, m, false)
	codes := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1)
	for _, c := range codes {
		q.RolloutEnded(schema.StatusFailed, &schema.Fault{Code: c[1]})
	}
	_, text := harness.Get(t, url+"/metrics")
	for _, c := range codes {
		if !strings.Contains(text, fmt.Sprintf("turngate_rollouts_total{fault=%q,status=\"failed\"} 1\n", c[1])) {
			t.Errorf("the code %s has no label of its own", c[1])
		}
	}
	if len(codes) < 30 {
		t.Errorf("only %d codes were found", len(codes))
	}
}

// TestTrainersAreBounded shows the queues of 150 trainers: 100 by name, and the others
// together.
func TestTrainersAreBounded(t *testing.T) {
	m := telemetry.New("test")
	reads := 0
	m.WatchBacklog(func(context.Context) (telemetry.Backlog, error) {
		reads++
		b := telemetry.Backlog{Lanes: []telemetry.Waiting{{Lane: "p1", Queued: 7}}} // the plain lane
		for i := range 150 {
			b.Lanes = append(b.Lanes, telemetry.Waiting{Trainer: fmt.Sprintf("t%03d", i), Lane: "p1", Queued: 2, Oldest: time.Now().Add(-time.Hour)}, telemetry.Waiting{Trainer: fmt.Sprintf("t%03d", i), Lane: "p0", Delayed: 1})
		}
		return b, nil
	})
	_, url := serve(t, m, false)
	harness.Get(t, url+"/metrics")
	_, text := harness.Get(t, url+"/metrics")
	if reads != 1 {
		t.Errorf("two scrapes read the queues %d times", reads)
	}
	for _, want := range []string{`turngate_queue_depth{lane="p1",trainer="t099"} 2`, `turngate_queue_depth{lane="p1",trainer="*"} 100`, `turngate_queue_depth{lane="p1",trainer=""} 7`, `turngate_queue_parked{lane="p0",reason="delay",trainer="*"} 50`, "turngate_queue_up 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "t100") || !strings.Contains(text, `turngate_queue_oldest_seconds{lane="p1",trainer="*"} 36`) {
		t.Error("a trainer too many is named, or the age of the others is wrong")
	}
}

// TestCallsAreCountedAsTheyWere ends a call that waits for its slot, and one for which the
// trainer names an impossible number of tokens.
func TestCallsAreCountedAsTheyWere(t *testing.T) {
	m, r, _ := all()
	_, url := serve(t, m, false)
	c := r.Calls()
	c.Waits(&schema.WaitEvent{Call: 1, For: schema.WaitSlot})
	c.Waits(&schema.WaitEvent{Call: 1, For: schema.WaitSlot, Ended: true, MS: 1500})
	c.Ended(1, 0, nil, &schema.Fault{Code: schema.CodeCancelled})
	c.Began(2)
	c.Ended(2, time.Second, &schema.Reply{Usage: schema.Usage{PromptTokens: 1 << 60, CompletionTokens: 7}}, nil)
	_, text := harness.Get(t, url+"/metrics")
	for _, want := range []string{
		`turngate_model_call_seconds_count{part="answer"} 1`, `turngate_model_call_seconds_count{part="wait"} 2`, `turngate_model_calls_total{fault="cancelled",outcome="failed"} 1`, "turngate_model_calls_open 0",
		`turngate_model_tokens_total{kind="prompt"} 2.147483648e+09`, `turngate_model_tokens_total{kind="completion"} 7`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

func TestABacklogThatCannotBeRead(t *testing.T) {
	m := telemetry.New("test")
	m.WatchBacklog(func(context.Context) (telemetry.Backlog, error) {
		return telemetry.Backlog{Lanes: []telemetry.Waiting{{Trainer: "alpha", Lane: "p1"}}}, errors.New("no server")
	})
	_, url := serve(t, m, false)
	if status, text := harness.Get(t, url+"/metrics"); status != http.StatusOK || !strings.Contains(text, "turngate_queue_up 0\n") || strings.Contains(text, "turngate_queue_depth{") {
		t.Errorf("%d %s", status, text)
	}
}

// TestTheDiskOfAStore: a full one has 0 free bytes, and one that cannot be read none.
func TestTheDiskOfAStore(t *testing.T) {
	m := telemetry.New("test")
	var free, size int64
	m.WatchStore(func() (int64, int64) { return free, size })
	_, url := serve(t, m, false)
	if status, text := harness.Get(t, url+"/metrics"); status != http.StatusOK || strings.Contains(text, "\nturngate_store_") {
		t.Errorf("a disk that cannot be read: %d %s", status, text)
	}
	size = 1 << 20
	if _, text := harness.Get(t, url+"/metrics"); !strings.Contains(text, "\nturngate_store_free_bytes 0\n") || !strings.Contains(text, "\nturngate_store_size_bytes 1.048576e+06\n") {
		t.Errorf("a full disk: %s", text)
	}
}

func TestHealth(t *testing.T) {
	m := telemetry.New("test")
	s, url := serve(t, m, false)
	for _, tt := range []struct {
		path   string
		status int
		text   string
	}{{"/livez", 200, "ok\n"}, {"/readyz", 503, "it starts\n"}, {"/debug/pprof/", 404, ""}, {"/", 404, ""}} {
		if status, text := harness.Get(t, url+tt.path); status != tt.status || tt.text != "" && text != tt.text {
			t.Errorf("%s: %d %q", tt.path, status, text)
		}
	}
	s.Ready(func() error { return errors.New("it stops") })
	if status, text := harness.Get(t, url+"/readyz"); status != 503 || text != "it stops\n" {
		t.Errorf("%d %q", status, text)
	}
	s.Ready(func() error { return nil })
	if status, text := harness.Get(t, url+"/readyz"); status != 200 || text != "ready\n" {
		t.Errorf("%d %q", status, text)
	}
	_, url = serve(t, m, true)
	if status, text := harness.Get(t, url+"/debug/pprof/goroutine?debug=1"); status != 200 || !strings.Contains(text, "goroutine profile") {
		t.Errorf("%d %q", status, text)
	}
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]struct{ valid, loopback bool }{
		"127.0.0.1:9464": {true, true}, "localhost:1": {true, true}, "[::1]:0": {true, true}, "0.0.0.0:9464": {true, false}, ":9464": {true, false}, "[::]:9464": {true, false},
		"9464": {}, "example.org:9464": {}, "127.0.0.1": {},
	} {
		if err := telemetry.CheckAddress(address); (err == nil) != want.valid {
			t.Errorf("%s: %v", address, err)
		}
		if got := telemetry.Loopback(address); got != want.loopback {
			t.Errorf("%s is loopback: %v", address, got)
		}
	}
}

// BenchmarkCall measures the cost of the metrics of one call.
func BenchmarkCall(b *testing.B) {
	_, r, _ := all()
	c, reply := r.Calls(), &schema.Reply{Usage: schema.Usage{PromptTokens: 5, CompletionTokens: 2}}
	for i := 0; b.Loop(); i++ {
		c.Began(i)
		c.Ended(i, time.Second, reply, nil)
	}
}
