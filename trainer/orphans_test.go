package trainer_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestACallThatIsRoutedToAnotherShardIsNoOrphans: the process of that shard neither
// cancels nor adopts the rollout, which another process has. It answers the call with
// AnswerAll.
func TestACallThatIsRoutedToAnotherShardIsNoOrphans(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, orphans := range []trainer.Orphans{trainer.LeaveOrphans, trainer.CancelOrphans, trainer.AdoptOrphans} {
		t.Run(string(orphans), func(t *testing.T) {
			b := newBench(t, func(c *trainer.Config) { c.AnswerAll = false })
			b.submitOne(t, "alpha-1")
			job, err := b.worker.Take(t.Context())
			harness.Must(t, err)
			judge := b.config(t)
			judge.Shard, judge.Orphans = "judge", orphans
			second, err := trainer.Dial(t.Context(), judge)
			harness.Must(t, err)
			defer second.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			absent := make(chan struct{}, 100)
			call := schema.Call{V: 1, Key: "alpha-1/1/1", Tag: schema.TagSubagent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}
			answered := make(chan answer, 1)
			go func() {
				r, err := testenv.Complete(ctx, b.calls.Caller(job.Request, job).To("judge"), call, func(f schema.Frame) error {
					if f.Kind == schema.FrameAbsent {
						absent <- struct{}{}
					}
					return nil
				})
				answered <- answer{r, err}
			}()
			for range 2 { // rounds without an answer
				select {
				case <-absent:
				case a := <-answered:
					t.Fatalf("it was answered: %+v", a)
				case <-time.After(30 * time.Second):
					t.Fatal("the call was adopted")
				}
			}
			if n := second.Outstanding(); n != 0 {
				t.Errorf("%d rollouts of another process are outstanding", n)
			}
			second.Close()
			judge.AnswerAll = true
			third, err := trainer.Dial(t.Context(), judge)
			harness.Must(t, err)
			defer third.Close()
			harness.Must(t, next(t, third).Reply(text("judged")))
			said(t, <-answered, "judged")
			if s, err := b.trainerState(t, "alpha-1"); err != nil || s.Status != schema.StatusRunning {
				t.Errorf("the rollout is %q, %v", s.Status, err)
			}
			if n := third.Outstanding() + b.trainer.Outstanding(); n != 1 {
				t.Errorf("%d rollouts are outstanding, want that of the first process", n)
			}
		})
	}
}

// TestOrphansAreLookedForAgain: a look that fails is repeated, and Results waits for it.
func TestOrphansAreLookedForAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.AnswerAll = false })
	for _, id := range []schema.ID{"alpha-1", "alpha-2", "alpha-3"} {
		b.submitOne(t, id)
	}
	b.trainer.Close()
	p := testenv.NewProxy(t, strings.TrimPrefix(b.nats.URL(), "nats://"))
	var log harness.Buffer
	c := b.config(t)
	c.Broker = testenv.DialAt(t, p.URL(), b.nats.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"), zerolog.Nop())
	c.Orphans, c.Log = trainer.AdoptOrphans, zerolog.New(&log)
	p.Set(false, false, 100*time.Millisecond)
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer second.Close()
	p.Lose(1, 1)
	harness.Eventually(t, "a warning", 5*time.Minute, func() bool {
		return strings.Contains(log.String(), "the open rollouts of other processes are not known")
	})
	p.Lose(0, 0)
	p.Set(false, false, 0)
	got := make(chan schema.ID, 3)
	ended := make(chan error, 1)
	go func() { ended <- second.Results(t.Context(), func(r schema.Result) { got <- r.ID }) }()
	harness.Eventually(t, "three adopted rollouts", 5*time.Minute, func() bool { return second.Outstanding() == 3 })
	for range 3 {
		b.run(t)
	}
	harness.Must(t, <-ended)
	if len(got) != 3 {
		t.Errorf("%d results", len(got))
	}
}

// TestTheNextProcessEndsRolloutsWithoutAStateFile: when it submits its first rollouts, it ends
// the ones that an earlier process of its shard left. Rollouts in a State file, of other
// programs and of other shards stay.
func TestTheNextProcessEndsRolloutsWithoutAStateFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	submit := func(id schema.ID, change func(*trainer.Config)) {
		t.Helper()
		c := b.config(t)
		c.Orphans = trainer.LeaveOrphans
		change(&c)
		tr, err := trainer.Dial(t.Context(), c)
		harness.Must(t, err)
		defer tr.Close()
		harness.Must(t, tr.Submit(t.Context(), []schema.Request{harness.Request(id)}))
	}
	b.trainer.Close()
	kept := t.TempDir() + "/state"
	submit("alpha-lost", func(*trainer.Config) {})
	submit("alpha-kept", func(c *trainer.Config) { c.State = kept })
	submit("alpha-apart", func(c *trainer.Config) { c.Shard = "apart" })
	other, err := queue.NewTrainer(b.nats.Trainer(t, "alpha"), "alpha") // a program that does not say which process it is
	harness.Must(t, err)
	_, err = other.Submit(t.Context(), 2, []schema.Request{harness.Request("alpha-other")})
	harness.Must(t, err)

	var log harness.Buffer
	c := b.config(t)
	c.Log = zerolog.New(&log)
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	harness.Must(t, second.Adopt(t.Context(), []schema.Request{harness.Request("alpha-lost")}))
	second.Close()
	if _, err := b.trainerState(t, "alpha-lost"); err == nil {
		t.Error("a process that adopts a rollout ends it")
	}
	third, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer third.Close()
	harness.Must(t, third.Submit(t.Context(), []schema.Request{harness.Request("alpha-new")}))
	harness.Eventually(t, "a cancelled rollout", 5*time.Minute, func() bool {
		s, err := b.trainerState(t, "alpha-lost")
		return err == nil && s.Status == schema.StatusCancelled
	})
	for _, id := range []schema.ID{"alpha-kept", "alpha-apart", "alpha-other", "alpha-new"} {
		if s, err := b.trainerState(t, id); err == nil {
			t.Errorf("%s is %q", id, s.Status)
		}
	}
	if got := log.String(); !strings.Contains(got, `"rollouts":1,"shard":"0","message":"open rollouts of processes that are gone are ended`) || !strings.Contains(got, `"rollouts":2,"shard":"0","message":"open rollouts that this process did not submit are left alone`) {
		t.Error(got)
	}
	if strings.Contains(log.String(), "has the place of another one") {
		t.Error("a process that ended by itself has its place taken")
	}
}

// TestRolloutsThatHoldAllSlotsAreNamed: a process whose rollouts all wait says which ones have
// the slots, and how they end; and that nobody asks for its calls.
func TestRolloutsThatHoldAllSlotsAreNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.AnswerAll, c.Shard = false, "gone" })
	b.submitOne(t, "alpha-old")
	job, err := b.worker.Take(t.Context())
	harness.Must(t, err)
	b.trainer.Close()
	var log harness.Buffer
	c := b.config(t)
	c.Log = zerolog.New(&log)
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer second.Close()
	harness.Must(t, second.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	harness.Eventually(t, "a line about slots", 5*time.Minute, func() bool {
		return strings.Contains(log.String(), "1 rollouts of shard gone of this trainer run, and no process answers them: turngate rollout cancel alpha-old")
	})
	harness.Must(t, job.Done(t.Context(), schema.Result{ID: "alpha-old", Attempt: job.Attempt, Status: schema.StatusDone}))
	job, err = b.worker.Take(t.Context())
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.ask(ctx, job.Attempt, 1, nil)
	harness.Eventually(t, "a line about calls", 5*time.Minute, func() bool {
		return strings.Contains(log.String(), "call Serve, or answer those of Next")
	})
}
