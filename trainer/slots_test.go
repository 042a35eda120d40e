package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// await waits until the trainer has this many rollouts and requests that wait.
func await(t *testing.T, tr *trainer.Trainer, rollouts, waiting int) {
	t.Helper()
	harness.Eventually(t, "the load", 5*time.Minute, func() bool {
		l := tr.Load()
		return l.Rollouts == rollouts && l.Waiting == waiting
	})
}

func withSlots(n int) func(*trainer.Config) {
	return func(c *trainer.Config) { c.Slots = n }
}

// submitting submits in the background.
func submitting(ctx context.Context, tr *trainer.Trainer, requests ...schema.Request) <-chan error {
	end := make(chan error, 1)
	go func() { end <- tr.Submit(ctx, requests) }()
	return end
}

func TestSubmitWaitsForSlots(t *testing.T) {
	t.Parallel()
	b := newBench(t, withSlots(2))
	var all []schema.Request
	for _, id := range []schema.ID{"alpha-1", "alpha-2", "alpha-3", "alpha-4"} {
		all = append(all, harness.Request(id))
	}
	end := submitting(t.Context(), b.trainer, all...)
	await(t, b.trainer, 2, 2)
	got, over := b.results(t, trainer.Wanted{})
	want := []schema.ID{b.finish(t, nil), b.finish(t, nil)}
	harness.Must(t, within(t, end))
	for range 2 {
		want = append(want, b.finish(t, nil))
	}
	harness.Must(t, within(t, over)) // not before the requests that waited
	var ids []schema.ID
	for range len(got) {
		ids = append(ids, (<-got).ID)
	}
	if slices.Sort(ids); !slices.Equal(ids, want) || len(ids) != 4 {
		t.Fatalf("got %v, want %v", ids, want)
	}
	await(t, b.trainer, 0, 0)
}

func TestAStoredResultFreesItsSlot(t *testing.T) {
	t.Parallel()
	b := newBench(t, withSlots(1))
	end := submitting(t.Context(), b.trainer, harness.Request("alpha-1"), harness.Request("alpha-2"))
	await(t, b.trainer, 1, 1)
	b.finish(t, nil)
	harness.Must(t, within(t, end))
	if n := b.trainer.Outstanding(); n != 2 {
		t.Fatalf("%d rollouts are outstanding", n)
	}
	b.finish(t, nil)
	await(t, b.trainer, 0, 0)
}

func TestAGroupWaitsAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t, withSlots(2))
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	large := submitting(t.Context(), b.trainer, group("g", "alpha-g1", "alpha-g2", "alpha-g3")...)
	await(t, b.trainer, 1, 3)
	small := submitting(t.Context(), b.trainer, harness.Request("alpha-2"))
	await(t, b.trainer, 1, 4)
	b.finish(t, nil)
	harness.Must(t, within(t, large))
	await(t, b.trainer, 3, 1)
	harness.Must(t, b.trainer.SetSlots(4))
	harness.Must(t, within(t, small))
	var invalid *schema.InvalidError
	if err := b.trainer.SetSlots(-1); !errors.As(err, &invalid) || !strings.Contains(err.Error(), `slots: "-1"`) {
		t.Fatalf("got %v", err)
	}
}

func TestASubmitThatWaitsForSlotsEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, withSlots(1))
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	ctx, cancel := context.WithCancel(t.Context())
	end := submitting(ctx, b.trainer, group("g", "alpha-g1", "alpha-g2")...)
	await(t, b.trainer, 1, 2)
	_, over := b.results(t, trainer.Wanted{Group: "g"})
	cancel()
	if err := within(t, end); !errors.Is(err, context.Canceled) || errors.Is(err, trainer.ErrUnsure) {
		t.Fatalf("got %v", err)
	}
	harness.Must(t, within(t, over)) // none of the group will come
	if n := b.trainer.Outstanding(); n != 1 {
		t.Fatalf("%d rollouts are outstanding", n)
	}
	end = submitting(t.Context(), b.trainer, harness.Request("alpha-2"))
	await(t, b.trainer, 1, 1)
	b.trainer.Close()
	if err := within(t, end); !errors.Is(err, trainer.ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestSlotsAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	state := filepath.Join(t.TempDir(), "state")
	kept := func(c *trainer.Config) { c.State = state }
	began := time.Now()
	first := b.start(t, kept)
	harness.Must(t, first.Submit(t.Context(), []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")}))
	first.Close()
	b.finish(t, nil)
	again := b.start(t, kept, withSlots(2))
	await(t, again, 1, 0)
	if l := again.Load(); l.Queued != 1 || l.OldestQueued != 0 { // the time of its submission is not known
		t.Fatalf("got %+v", l)
	}
	harness.Must(t, again.Submit(t.Context(), []schema.Request{harness.Request("alpha-3")}))
	if l := again.Load(); l.Rollouts != 2 || l.Queued != 2 || l.OldestQueued <= 0 || l.OldestQueued > time.Since(began) {
		t.Fatalf("got %+v", l)
	}
}

func TestTheLoadHasCallsThatWereNotHandedOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reply := b.ask(ctx, 1, 1, nil)
	harness.Eventually(t, "the call waits", 5*time.Minute, func() bool { l := b.trainer.Load(); return l.Calls == 1 && l.OldestCall > 0 })
	b.trainer.Hold(trainer.Selection{})
	if l := b.trainer.Load(); l.Calls != 0 || l.OldestCall != 0 {
		t.Fatalf("a held call counts: %+v", l)
	}
	b.trainer.Resume()
	if l := b.trainer.Load(); l.Calls != 1 {
		t.Fatalf("got %+v", l)
	}
	p, err := b.trainer.Next(ctx)
	harness.Must(t, err)
	if l := b.trainer.Load(); l.Calls != 0 || l.OldestCall != 0 {
		t.Fatalf("a call that is answered counts: %+v", l)
	}
	harness.Must(t, p.Reply(text("ok")))
	within(t, reply)
}

func TestRolloutsWithAnUpstreamAreNotQueued(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxied, helped := harness.Request("alpha-1"), harness.Request("alpha-2")
	proxied.Mode, proxied.Model.Upstream = schema.ModeProxy, "engine"
	helped.Gate.Routes = schema.SortedMap[schema.Route]{schema.TagAux: {Upstream: "engine"}} // the trainer answers the agent
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{proxied, helped}))
	if l := b.trainer.Load(); l.Rollouts != 2 || l.Queued != 1 {
		t.Fatalf("got %+v", l)
	}
}

func TestSteer(t *testing.T) {
	t.Parallel()
	var vectors []struct {
		About              string
		Slots, Least, Most int
		Wait               float64
		OldestQueued       float64 `json:"oldest_queued"`
		OldestCall         float64 `json:"oldest_call"`
		Waiting, Want      int
	}
	data, err := os.ReadFile(filepath.Join("testdata", "steer.json"))
	harness.Must(t, err)
	harness.Must(t, json.Unmarshal(data, &vectors))
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for _, v := range vectors {
		l := trainer.Load{Waiting: v.Waiting, OldestQueued: seconds(v.OldestQueued), OldestCall: seconds(v.OldestCall)}
		if got := l.Steer(v.Slots, v.Least, v.Most, seconds(v.Wait)); got != v.Want {
			t.Errorf("%s: got %d, want %d", v.About, got, v.Want)
		}
	}
}

func TestSlotsAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := trainer.Dial(t.Context(), trainer.Config{Name: "alpha", Slots: -1}); err == nil || !strings.Contains(err.Error(), `slots: "-1"`) {
		t.Fatalf("got %v", err)
	}
}
