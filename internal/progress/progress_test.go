package progress

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func result(id schema.ID, reward float64, fault *schema.Fault) *schema.Result {
	r := &schema.Result{ID: id, Status: schema.StatusDone, Reward: &reward}
	if fault != nil {
		r.Reward, r.Fault = nil, fault
	}
	return r
}

// TestHundredsFit: the drawing of a job with hundreds of trials, many of them
// running, fits into the terminal's 80 columns and its rows.
func TestHundredsFit(t *testing.T) {
	now := time.Unix(1000, 0)
	b := New(Config{Out: &bytes.Buffer{}, Size: func() (int, int) { return 80, 24 }, Now: func() time.Time { return now }})
	b.trials, b.started, b.heard = 500, now, now
	for i := range 500 {
		b.names[schema.ID(fmt.Sprintf("a-%d", i))] = fmt.Sprintf("org/a-task-with-a-name\nthat is long \x1b[31m %d", i)
	}
	for i := range 100 {
		id := schema.ID(fmt.Sprintf("a-%d", i))
		b.Event(schema.Event{Type: schema.EventPhase, Rollout: id, Phase: &schema.PhaseEvent{Name: "agent"}})
		for range i {
			b.Call(id)
		}
	}
	b.Event(schema.Event{Type: schema.EventWait, Rollout: "a-60", Wait: &schema.WaitEvent{For: schema.WaitTrainer, Call: 3}})
	b.Event(schema.Event{Type: schema.EventWait, Rollout: "a-61", Wait: &schema.WaitEvent{For: schema.WaitVerify}})
	now = now.Add(100 * time.Second)
	for i := range 50 {
		b.Result(result(schema.ID(fmt.Sprintf("a-%d", i)), float64(i%2), nil))
	}
	b.Result(result("a-50", 0, schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "no")))
	lines := b.render(now, 79, 24)
	if len(lines) != 17 || !strings.HasPrefix(lines[0], "51/500 ██░") || !strings.Contains(lines[0], "mean 0.5, 1 error, 1m40s, ETA 14m40s") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > 79 || strings.ContainsAny(l, "\n\x1b") {
			t.Errorf("this does not fit: %q", l)
		}
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"and 34 more that run", "51 calls  agent", "waits for a trainer (call", "waits for a verdict"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

// TestAnswersEndAWait: an answer ends a call's wait, and the next phase ends any
// other wait.
func TestAnswersEndAWait(t *testing.T) {
	b := New(Config{Out: &bytes.Buffer{}, Size: func() (int, int) { return 80, 24 }})
	b.names["a-1"] = "x"
	b.Event(schema.Event{Rollout: "a-1", Wait: &schema.WaitEvent{For: schema.WaitTrainer, Call: 1}})
	b.Call("a-1")
	if b.running["a-1"].wait != nil {
		t.Error("it still waits after the answer")
	}
	b.Event(schema.Event{Rollout: "a-1", Wait: &schema.WaitEvent{For: schema.WaitSandbox}})
	b.Event(schema.Event{Rollout: "a-1", Phase: &schema.PhaseEvent{Name: "agent"}})
	if b.running["a-1"].wait != nil {
		t.Error("it still waits in the next phase")
	}
	b.Event(schema.Event{Rollout: "b-1", Phase: &schema.PhaseEvent{Name: "agent"}})
	if len(b.running) != 1 {
		t.Error("another job's rollout is shown")
	}
}

// TestQueuedIsNotRunning: a rollout that no worker has taken is counted as
// queued, and its time begins with its first phase.
func TestQueuedIsNotRunning(t *testing.T) {
	now := time.Unix(1000, 0)
	b := New(Config{Out: &bytes.Buffer{}, Size: func() (int, int) { return 80, 24 }, Now: func() time.Time { return now }})
	b.trials, b.started, b.heard = 3, now, now
	for _, id := range []schema.ID{"a-1", "a-2", "a-3"} {
		b.names[id] = string(id)
		b.Event(schema.Event{Rollout: id, Wait: &schema.WaitEvent{For: schema.WaitWorker, Note: "no slot is free"}})
	}
	now = now.Add(time.Minute)
	b.Event(schema.Event{Rollout: "a-1", Wait: &schema.WaitEvent{For: schema.WaitWorker, Ended: true}})
	if len(b.running) != 0 || len(b.queued) != 2 {
		t.Errorf("%d run, %d are queued", len(b.running), len(b.queued))
	}
	b.Event(schema.Event{Rollout: "a-1", Phase: &schema.PhaseEvent{Name: "create"}})
	now = now.Add(5 * time.Second)
	lines := strings.Join(b.render(now, 79, 24), "\n")
	for _, want := range []string{"a-1                              5s    0 calls  create", "2 queued: no slot is free"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
	if s := b.status(now); !strings.Contains(s, "1 run") || !strings.Contains(s, "; 2 queued: no slot is free") {
		t.Error(s)
	}
	b.Event(schema.Event{Rollout: "a-1", Wait: &schema.WaitEvent{For: schema.WaitWorker}}) // a late event
	if len(b.running) != 1 || len(b.queued) != 2 {
		t.Errorf("%d run, %d are queued", len(b.running), len(b.queued))
	}
}

// TestNothingRuns: if no rollout runs, a line reports it after some seconds, and
// then at intervals.
func TestNothingRuns(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	b := New(Config{Out: &out, Now: func() time.Time { return now }})
	b.trials, b.started, b.heard, b.printed = 2, now, now, now
	for range 40 {
		now = now.Add(time.Second)
		b.tick()
	}
	if got := strings.Count(out.String(), "none runs: they wait for a worker"); got != 2 {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}

// TestOthersPrintAboveTheBar: other output appears above the bar, which is then
// drawn again.
func TestOthersPrintAboveTheBar(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	b := New(Config{Out: &out, Size: func() (int, int) { return 80, 24 }, Now: func() time.Time { return now }})
	b.Begin(1, map[schema.ID]string{"a-1": "x"}, nil)
	fmt.Fprintln(b, "a warning")
	b.Result(result("a-1", 1, nil))
	b.End()
	b.End() // a second End does nothing
	if text := out.String(); !strings.Contains(text, "a warning\n") || !strings.HasSuffix(text, "mean 1, 0s\n") {
		t.Errorf("%q", text)
	}
}

// A trial that runs again has not ended, and its next rollout has its name.
func TestATrialThatRunsAgain(t *testing.T) {
	var out bytes.Buffer
	b := New(Config{Out: &out})
	b.Begin(1, map[schema.ID]string{"a-1": "task__x"}, nil)
	defer b.End()
	b.Again(result("a-1", 0, schema.Faultf("agent", schema.CodeExit, schema.WhoAgent, "no")), "a-1-1")
	b.Result(result("a-1-1", 1, nil))
	for _, want := range []string{"a-1 task__x: done, agent: exit: no; the trial runs again as a-1-1\n", "[1/1] a-1-1 task__x: done, reward 1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

func TestDollars(t *testing.T) {
	if got := Dollars(nil); got != "-" {
		t.Errorf("unknown: %s", got)
	}
	for usd, want := range map[float64]string{0: "$0.0000", 7.92e-6: "$0.0000079", 1.3e-4: "$0.00013", 0.0041: "$0.0041", 0.5: "$0.5000", 12.345: "$12.35", 1e-30: "$0.000000000000"} {
		if got := Dollars(&usd); got != want {
			t.Errorf("%g: %s, want %s", usd, got, want)
		}
	}
}
