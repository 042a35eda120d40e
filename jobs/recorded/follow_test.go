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
				tell := func(err error) {
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
				if role == broker.RoleAdmin {
					recorded.On(from).FollowAll(ctx, true, handle, tell)
				} else {
					recorded.On(from).Follow(ctx, "alpha", true, handle, tell)
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

// A state that is newer than the one before an error is shown, and the reading of a
// deleted trainer ends.
func TestAFollowerGoesOnAfterAnError(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	worker, admin := n.Worker(t, "w1"), n.Admin(t)
	put := func(id schema.ID, status schema.Status, expect uint64) (uint64, error) {
		return worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: status, Attempt: 1}, expect)
	}
	_, err := put("alpha-old", schema.StatusDone, 0)
	harness.Must(t, err)
	now, err := put("alpha-new", schema.StatusRunning, 0)
	harness.Must(t, err)
	unreadable, err := broker.Expecting(subjects.Result("alpha-old"), &schema.Result{V: schema.Version, ID: "alpha-old", Trainer: "alpha", Status: schema.StatusDone}, 0)
	harness.Must(t, err)
	unreadable.Data = []byte("x")
	bad, err := worker.Messages.PutMsg(t.Context(), unreadable)
	harness.Must(t, err)

	ctx, stop := context.WithCancel(t.Context())
	seen, told := make(chan *recorded.Rollout, 100), make(chan error, 1000)
	var once sync.Once
	var done sync.WaitGroup
	done.Go(func() {
		recorded.On(admin).FollowAll(ctx, false, func(r *recorded.Rollout) { seen <- r }, func(err error) {
			once.Do(func() { // the follower reads nothing meanwhile
				_, err1 := put("alpha-new", schema.StatusDone, now)
				_, err2 := worker.Messages.Put(t.Context(), subjects.Result("alpha-old"), &schema.Result{V: schema.Version, ID: "alpha-old", Trainer: "alpha", Status: schema.StatusDone}, bad)
				if err := errors.Join(err1, err2); err != nil {
					t.Error(err)
				}
			})
			told <- err
		})
	})
	defer done.Wait()
	defer stop()
	for _, want := range []struct {
		id     schema.ID
		status schema.Status
	}{{"alpha-new", schema.StatusRunning}, {"alpha-new", schema.StatusDone}, {"alpha-old", schema.StatusDone}} {
		if r := <-seen; r.ID != want.id || r.State.Status != want.status {
			t.Errorf("got %s %s, want %+v", r.ID, r.State.Status, want)
		}
	}
	if err := <-told; err == nil {
		t.Error("told of no error")
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	harness.Must(t, admin.Trainers.Delete(t.Context(), "alpha"))
	if err := <-told; err == nil {
		t.Error("told of no error")
	}
	for <-told != nil { // until it is not followed any more
	}
}

func request(id schema.ID) *schema.Request {
	q := harness.Request(id)
	q.V = schema.Version
	return &q
}
