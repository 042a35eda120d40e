package trainer_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
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
