package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

const (
	// auditEvery is the default of Config.AuditEvery.
	auditEvery = 5 * time.Minute
	// auditAge is the part of an interval after which a new request is looked at.
	auditAge = 30
)

// auditor submits again the outstanding rollouts that the broker lost, each once per loss.
type auditor struct {
	*base
	outstanding *outstanding
	endings     *endings
	bundles     *bundles
}

// audit looks at the rollouts whose submission is not in flight any more.
func (a *auditor) audit() {
	if err := a.auditOlder(a.cfg.AuditEvery / auditAge); err != nil && a.life.Err() == nil {
		a.cfg.Log.Warn().Err(err).Msg("it is not known whether a rollout was lost; the next round looks again")
	}
}

// auditOlder is audit for rollouts that were submitted at least so long ago.
func (a *auditor) auditOlder(age time.Duration) error {
	var old []schema.ID
	a.outstanding.each(func(s *submitted) {
		if !s.sending && time.Since(s.at) >= age {
			old = append(old, s.request.ID)
		}
	})
	for _, id := range old {
		if err := a.auditOne(id); err != nil {
			return fmt.Errorf("rollout %s: %w", id, err)
		}
	}
	return nil
}

func (a *auditor) auditOne(id schema.ID) error {
	ctx, cancel := context.WithTimeout(a.life, 10*time.Second)
	defer cancel()
	state, err := a.requests.Records.State(ctx, id)
	switch {
	case err == nil && state.Status.Terminal():
		a.endings.hint(id)
		return nil
	case err == nil: // the workers look after it
		a.outstanding.sawAttempt(id, state.Attempt)
		return nil
	case !errors.Is(err, broker.ErrNotFound):
		return err
	}
	if _, err := a.requests.Records.Result(ctx, id); err == nil {
		a.endings.hint(id)
		return nil
	} else if !errors.Is(err, broker.ErrNotFound) {
		return err
	}
	s, ok := a.outstanding.get(id)
	if !ok {
		return nil
	}
	there, err := a.requests.Queued(ctx, id, s.seq)
	if err != nil || there {
		return err
	}
	return a.submitAgain(ctx, s)
}

func (a *auditor) submitAgain(ctx context.Context, s submitted) error {
	id := s.request.ID
	s.request.AttemptFloor = max(s.request.AttemptFloor, s.attempt)
	if err := a.bundles.putAgain(ctx, s.request.Task.Bundle); err != nil {
		return err
	}
	seqs, err := a.requests.Submit(ctx, s.lane, []schema.Request{s.request})
	if errors.Is(err, queue.ErrQueueFull) {
		return nil // with a full queue a request would be lost again
	}
	if err != nil {
		return err
	}
	a.cfg.Log.Warn().Str("rollout", string(id)).Msg("the broker had lost a request; it was submitted again")
	a.outstanding.change(id, func(of *submitted) { of.seq, of.at = seqs[0], time.Now() })
	return a.outstanding.ledger.write(false, entry{ID: id, Seq: seqs[0]})
}
