package trainer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestAdopt: a process without a state file takes over the rollouts of a dead
// one, in every state, and none runs twice.
func TestAdopt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	first := b.start(t, func(*trainer.Config) {})
	submitted := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2"), harness.Request("alpha-3")}
	if err := first.Submit(ctx, submitted); err != nil {
		t.Fatal(err)
	}
	ran := map[schema.ID]int{b.run(t): 1}
	running, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()

	second := b.start(t, func(*trainer.Config) {})
	if err := second.Adopt(ctx, append(submitted, harness.Request("alpha-4"))); err != nil {
		t.Fatal(err)
	}
	if n := second.Outstanding(); n != 4 {
		t.Fatalf("%d are outstanding, want 4", n)
	}
	heard := make(chan schema.Event, 10)
	stop, err := second.Watch(func(e schema.Event) { heard <- e })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	running.Emit(&schema.Event{Type: schema.EventLog, Rollout: running.Request.ID, Attempt: running.Attempt, Log: &schema.LogEvent{Source: "agent", Stream: "stdout", Text: "x"}})
	running.Emit(&schema.Event{Type: schema.EventPhase, Rollout: running.Request.ID, Attempt: running.Attempt, Phase: &schema.PhaseEvent{Name: "agent"}})
	select {
	case e := <-heard:
		if e.Rollout != running.Request.ID || e.Phase == nil || e.Phase.Name != "agent" {
			t.Errorf("got %+v", e)
		}
	case <-ctx.Done():
		t.Fatal("no event came")
	}
	take := func(j *queue.Job) {
		if err := j.Done(ctx, schema.Result{ID: j.Request.ID, Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
			t.Fatal(err)
		}
		ran[j.Request.ID]++
	}
	take(running)
	for len(ran) < 4 {
		j, err := b.worker.Take(ctx)
		if err != nil {
			t.Fatal(err)
		}
		take(j)
	}
	got := map[schema.ID]int{}
	if err := second.Results(ctx, func(r schema.Result) { got[r.ID]++ }); err != nil {
		t.Fatal(err)
	}
	for _, id := range []schema.ID{"alpha-1", "alpha-2", "alpha-3", "alpha-4"} {
		if ran[id] != 1 || got[id] != 1 {
			t.Errorf("%s ran %d times and gave %d results", id, ran[id], got[id])
		}
	}
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if j, err := b.worker.Take(short); err == nil {
		t.Errorf("%s would run a second time", j.Request.ID)
	}
}

// TestAResultIsReturnedOnce: a process that adopts does not return the results again that
// it has returned, also after another start with its file.
func TestAResultIsReturnedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	state := filepath.Join(t.TempDir(), "state")
	own := b.start(t, func(c *trainer.Config) { c.State = state })
	r := harness.Request("alpha-1")
	harness.Must(t, own.Submit(t.Context(), []schema.Request{r}))
	b.run(t)
	results := func(tr *trainer.Trainer) (n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		harness.Must(t, tr.Results(ctx, func(schema.Result) { n++ }))
		return n
	}
	if n := results(own); n != 1 {
		t.Fatalf("%d results", n)
	}
	harness.Must(t, own.Adopt(t.Context(), []schema.Request{r}))
	if n := results(own); n != 0 {
		t.Errorf("%d results for a second time", n)
	}
	own.Close()
	again := b.start(t, func(c *trainer.Config) { c.State = state })
	if n := results(again); n != 0 {
		t.Errorf("%d results for a second time, after another start", n)
	}
}

// TestAnotherProcessHasAnotherShard: adopted rollouts and rollouts of a state file get the
// shard of the process that has them now, and rollouts of other processes keep theirs.
func TestAnotherProcessHasAnotherShard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	first := b.start(t, func(c *trainer.Config) { c.State, c.Shard = state, "first" })
	apart := harness.Request("alpha-apart")
	apart.Shard = "judge"
	harness.Must(t, first.Submit(t.Context(), []schema.Request{harness.Request("alpha-1"), apart}))
	first.Close()
	shards := func(file string) map[schema.ID]string {
		t.Helper()
		data, err := os.ReadFile(file)
		harness.Must(t, err)
		got := map[schema.ID]string{}
		for line := range bytes.Lines(data) {
			var e struct{ Submit *schema.Request }
			harness.Must(t, json.Unmarshal(line, &e))
			if e.Submit != nil {
				got[e.Submit.ID] = e.Submit.Shard
			}
		}
		return got
	}
	var log harness.Buffer
	second := b.start(t, func(c *trainer.Config) { c.State, c.Shard, c.Log = state, "second", zerolog.New(&log) })
	if got := shards(state); got["alpha-1"] != "second" || got["alpha-apart"] != "judge" {
		t.Errorf("the state file has %v", got)
	}
	if !strings.Contains(log.String(), "send their calls to that shard") {
		t.Errorf("no warning in %q", log.String())
	}
	second.Close()
	adopted := filepath.Join(dir, "adopted")
	third := b.start(t, func(c *trainer.Config) { c.State, c.Shard = adopted, "third" })
	old := harness.Request("alpha-2")
	old.Shard = "first"
	harness.Must(t, third.Adopt(t.Context(), []schema.Request{old}))
	if got := shards(adopted); got["alpha-2"] != "third" {
		t.Errorf("the state file has %v", got)
	}
	for {
		job, err := b.worker.Take(t.Context())
		harness.Must(t, err)
		if job.Request.ID == "alpha-2" {
			if job.Request.Shard != "third" {
				t.Errorf("its worker asks shard %q", job.Request.Shard)
			}
			return
		}
	}
}

// TestAResultAfterCloseIsForTheNextProcess: it is not returned by both.
func TestAResultAfterCloseIsForTheNextProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	state := filepath.Join(t.TempDir(), "state")
	kept := func(c *trainer.Config) { c.State = state }
	own := b.start(t, kept)
	harness.Must(t, own.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	b.run(t)
	await(t, own, 0, 0) // it knows of the result
	own.Close()
	if r, err := own.NextResult(t.Context()); !errors.Is(err, trainer.ErrClosed) {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err := b.start(t, kept).NextResult(t.Context())
	if err != nil || r.ID != "alpha-1" {
		t.Errorf("got %+v, %v", r, err)
	}
}
