package recorded_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A follower gets every rollout, the ones before it began in several pages, and then
// each change: a request, its claim, and its result.
func TestRolloutsAreFollowed(t *testing.T) {
	for _, role := range []string{broker.RoleTrainer, broker.RoleAdmin} {
		t.Run(role, func(t *testing.T) {
			n := testenv.StartNATS(t, "alpha")
			worker := n.Worker(t, "w1")
			put := func(id schema.ID, status schema.Status, expect uint64) uint64 {
				t.Helper()
				seq, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: status, Attempt: 1}, expect)
				harness.Must(t, err)
				return seq
			}
			const old = 450 // more than two pages
			for i := range old {
				put(schema.ID(fmt.Sprintf("alpha-%03d", i)), schema.StatusDone, 0)
			}
			b := n.Trainer(t, "alpha")
			side, err := queue.NewTrainer(b, "alpha")
			harness.Must(t, err)
			submit := func(id schema.ID) {
				t.Helper()
				_, err := side.Submit(t.Context(), 2, []schema.Request{*request(id)})
				harness.Must(t, err)
			}
			submit("alpha-waits")

			from := b
			if role == broker.RoleAdmin {
				from = n.Admin(t)
			}
			ctx, stop := context.WithCancel(t.Context())
			seen := make(chan *recorded.Rollout, 1000)
			var done sync.WaitGroup
			done.Go(func() {
				handle := func(r *recorded.Rollout) { seen <- r }
				report := func(err error) {
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
				if role == broker.RoleAdmin {
					recorded.On(from).FollowAll(ctx, true, handle, report)
				} else {
					recorded.On(from).Follow(ctx, "alpha", true, handle, report)
				}
			})
			defer done.Wait()
			defer stop()
			found := map[schema.ID]int{}
			for len(found) <= old {
				found[(<-seen).ID]++
			}
			for id, times := range found {
				if times != 1 {
					t.Errorf("%s was shown %d times", id, times)
				}
			}
			next := func() *recorded.Rollout { t.Helper(); return <-seen }
			submit("alpha-new")
			if r := next(); r.ID != "alpha-new" || r.State.Status != schema.StatusQueued || r.Asked == nil {
				t.Errorf("got %+v", r)
			}
			_, err = worker.Messages.Put(t.Context(), subjects.RequestCopy("alpha-new"), request("alpha-new"), 0)
			harness.Must(t, err)
			seq := put("alpha-new", schema.StatusRunning, 0)
			if r := next(); r.ID != "alpha-new" || r.State.Status != schema.StatusRunning || r.Asked == nil {
				t.Errorf("got %+v", r)
			}
			_, err = worker.Messages.Put(t.Context(), subjects.Result("alpha-new"), &schema.Result{V: schema.Version, ID: "alpha-new", Trainer: "alpha", Status: schema.StatusDone}, 0)
			harness.Must(t, err)
			put("alpha-new", schema.StatusDone, seq)
			if r := next(); r.ID != "alpha-new" || r.Result == nil || r.State.Status != schema.StatusDone {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// A follower goes on when its trainer has streams again, and the reading of a deleted
// trainer ends.
func TestAFollowerGoesOnAfterAnError(t *testing.T) {
	testenv.Slow(t)
	n := testenv.StartNATS(t, "alpha")
	worker, admin := n.Worker(t, "w1"), n.Admin(t)
	put := func(id schema.ID, status schema.Status) {
		t.Helper()
		_, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: status, Attempt: 1}, 0)
		harness.Must(t, err)
	}
	remove := func() { t.Helper(); harness.Must(t, admin.Trainers.Delete(t.Context(), "alpha")) }
	put("alpha-old", schema.StatusDone)
	put("alpha-new", schema.StatusRunning)

	ctx, stop := context.WithCancel(t.Context())
	seen, errs := make(chan *recorded.Rollout, 100), make(chan error, 1000)
	var done sync.WaitGroup
	done.Go(func() {
		recorded.On(admin).Follow(ctx, "alpha", false, func(r *recorded.Rollout) { seen <- r }, func(err error) { errs <- err })
	})
	defer done.Wait()
	defer stop()
	next := func(id schema.ID, status schema.Status) {
		t.Helper()
		if r := <-seen; r.ID != id || r.State.Status != status {
			t.Errorf("got %s %s, want %s %s", r.ID, r.State.Status, id, status)
		}
	}
	next("alpha-new", schema.StatusRunning)
	next("alpha-old", schema.StatusDone)
	remove()
	if err := <-errs; err == nil {
		t.Error("no error was reported")
	}
	_, err := admin.Trainers.Open(t.Context(), "alpha")
	harness.Must(t, err)
	for <-errs != nil { // until it has read the new streams
	}
	put("alpha-new", schema.StatusDone)
	next("alpha-new", schema.StatusDone)

	all := make(chan error, 1000)
	done.Go(func() {
		recorded.On(admin).FollowAll(ctx, false, func(r *recorded.Rollout) { seen <- r }, func(err error) { all <- err })
	})
	next("alpha-new", schema.StatusDone)
	remove()
	for <-all != nil { // until it is not followed any more
	}
}

func request(id schema.ID) *schema.Request {
	q := harness.Request(id)
	q.V = schema.Version
	return &q
}

// A record that cannot be read is reported, and the rollouts after it are followed.
func TestAnUnreadableRecordEndsNoFeed(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	worker := n.Worker(t, "w1")
	b := n.Trainer(t, "alpha")
	if _, err := queue.NewTrainer(b, "alpha"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []schema.ID{"alpha-good", "alpha-bad", "alpha-last"} {
		_, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: schema.StatusDone, Attempt: 1}, 0)
		harness.Must(t, err)
	}
	// This is a valid message of another kind.
	_, err := worker.Messages.Put(t.Context(), subjects.Result("alpha-bad"), &schema.State{V: schema.Version, ID: "alpha-bad", Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1}, 0)
	harness.Must(t, err)

	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan *recorded.Rollout, 10)
	var done sync.WaitGroup
	done.Go(func() {
		recorded.On(b).Follow(ctx, "alpha", true, func(r *recorded.Rollout) { seen <- r }, func(err error) {
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	})
	defer done.Wait()
	defer stop()
	for range 3 {
		if r := <-seen; r.State.Status != schema.StatusDone || (r.Unread != nil) != (r.ID == "alpha-bad") {
			t.Errorf("got %+v", r)
		}
	}
	list, _, err := recorded.On(b).Rollouts(t.Context(), "alpha", 0, 10, true)
	if err != nil || len(list) != 3 {
		t.Errorf("got %d rollouts, %v", len(list), err)
	}
	var bad *broker.UnreadableRecord
	if _, err := recorded.On(b).Rollout(t.Context(), "alpha-bad", true); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
}
