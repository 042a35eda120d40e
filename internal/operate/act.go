package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// RetryLabel is the label of a retried rollout. Its value is the id of the first one.
const RetryLabel = "retry_of"

// Cancel asks the workers once to end rollouts of one trainer, at most 10,000. seqs has
// the sequence of each in the trainer's queue; 0: it is not known; nil: none is.
func (s *System) Cancel(tid string, ids []schema.ID, seqs []uint64, reason string) error {
	t, err := s.of(tid)
	if err != nil {
		return err
	}
	return t.Cancel(ids, seqs, reason)
}

// of returns the client for a trainer. The server does not tell that it has refused a
// message, so another trainer than that of the credential is refused here.
func (s *System) of(tid string) (*queue.Trainer, error) {
	if s.trainer != "" && tid != s.trainer {
		return nil, fmt.Errorf("this credential is that of trainer %s, and the rollout is of trainer %s", s.trainer, tid)
	}
	return queue.TrainerOf(s.b, tid)
}

// NoRequestError tells that the request of an ended rollout is gone, so that it cannot be
// submitted again by its id.
type NoRequestError struct {
	ID     schema.ID
	Status schema.Status
}

func (e *NoRequestError) Error() string {
	return fmt.Sprintf("%s is %s, and its request was not kept: it ended before any worker could read it; submit the request itself again", e.ID, e.Status)
}

// Again returns the request of an ended rollout under a new id; *NoRequestError without one.
func (s *System) Again(ctx context.Context, id schema.ID) (schema.Request, error) {
	state, err := s.b.Records.State(ctx, id)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return schema.Request{}, fmt.Errorf("%s: no worker has taken a rollout of that id: %w", id, err)
	case err != nil:
		return schema.Request{}, err
	case !state.Status.Terminal():
		return schema.Request{}, fmt.Errorf("%s has not ended: %s; `turngate rollout cancel` ends it", id, state.Status)
	}
	q, err := s.b.Records.Request(ctx, id)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return q, &NoRequestError{ID: id, Status: state.Status}
	case err != nil:
		return q, err
	}
	if q.ID, err = jobs.RolloutID(id.Trainer(), jobs.NewGroup(), q.Index); err != nil {
		return q, err
	}
	q.Process, q.AttemptFloor, q.DelayMS = "", 0, 0
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	q.Labels[RetryLabel] = cmp.Or(q.Labels[RetryLabel], string(id))
	return q, schema.Validate(&q)
}

// Submit puts a request into the queue of its trainer.
func (s *System) Submit(ctx context.Context, q schema.Request) error {
	t, err := s.of(q.Trainer)
	if err != nil {
		return err
	}
	_, err = t.Submit(ctx, subjects.DefaultLane, []schema.Request{q})
	return err
}

// Requeue puts a request that no worker could read back where it came on.
func (s *System) Requeue(ctx context.Context, seq uint64) error { return s.b.Dead.Requeue(ctx, seq) }
