package recorded_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestRolloutsOfARunningSystem(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	b := n.Trainer(t, "alpha")
	if _, err := recorded.On(b).Rollout(t.Context(), "alpha-01", true); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	s, err := recorded.Dial(t.Context(), n.URL(), n.TrainerCreds("alpha"), "alpha", zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if list, _, err := s.Rollouts(t.Context(), "alpha", 0, 10, true); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := recorded.Dial(t.Context(), n.URL(), "", "a b", zerolog.Nop()); err == nil {
		t.Error("a trainer with a space was accepted")
	}
	if list, _, err := recorded.On(n.Ops(t)).Rollouts(t.Context(), "alpha", 0, 10, false); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if list, next, err := recorded.On(b).Rollouts(t.Context(), "alpha", 0, 10, true); err != nil || len(list) != 0 || next != 0 {
		t.Errorf("got %v, %d, %v", list, next, err)
	}
}

// A trainer's rollouts are listed in pages: the waiting ones, and then the others,
// the newest first. A request with a state is not listed twice.
func TestATrainersRolloutsAreListed(t *testing.T) {
	n := testenv.StartNATS(t, "alpha")
	worker, b := n.Worker(t, "w1"), n.Trainer(t, "alpha")
	const states = 300 // more than the first look at the stream
	for i := range states {
		id := schema.ID(fmt.Sprintf("alpha-%03d", i))
		status := schema.StatusRunning
		if i == states-1 {
			status = schema.StatusDone
			if _, err := worker.Messages.Put(t.Context(), subjects.Result(id), &schema.Result{V: schema.Version, ID: id, Trainer: "alpha", Status: status}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: status, Attempt: 1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	side, err := queue.NewTrainer(b, "alpha")
	if err != nil {
		t.Fatal(err)
	}
	var requests []schema.Request
	for _, id := range []schema.ID{"alpha-000", "alpha-new", "alpha-newer"} {
		r := harness.Request(id)
		r.V = schema.Version
		requests = append(requests, r)
	}
	if _, err := side.Submit(t.Context(), 2, requests); err != nil {
		t.Fatal(err)
	}
	list, next, err := recorded.On(b).Rollouts(t.Context(), "alpha", 0, 290, true)
	if err != nil || len(list) != 292 || next == 0 {
		t.Fatalf("got %d rollouts, %d, %v", len(list), next, err)
	}
	if q := list[0]; q.ID != "alpha-new" || q.Asked == nil || q.State.Status != schema.StatusQueued || list[1].ID != "alpha-newer" {
		t.Errorf("got %+v, %+v", q, list[1])
	}
	if r := list[2]; r.ID != "alpha-299" || r.Result == nil || r.State.Status != schema.StatusDone || list[291].ID != "alpha-010" || list[291].Result != nil {
		t.Errorf("got %+v, %+v", r, list[291])
	}
	list, next, err = recorded.On(b).Rollouts(t.Context(), "alpha", next, 290, true)
	if err != nil || len(list) != 10 || next != 0 || list[0].ID != "alpha-009" || list[9].ID != "alpha-000" {
		t.Errorf("got %d rollouts, %d, %v", len(list), next, err)
	}
	if list, _, err := recorded.On(n.Ops(t)).Rollouts(t.Context(), "alpha", 0, 5, false); err != nil || len(list) != 5 || list[0].ID != "alpha-299" || list[0].Result == nil {
		t.Errorf("as an operator: %d rollouts, %v", len(list), err)
	}
	if r, err := recorded.On(b).Rollout(t.Context(), "alpha-newer", true); err != nil || r.State.Status != schema.StatusQueued {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := recorded.On(b).Rollout(t.Context(), "alpha-newer", false); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
