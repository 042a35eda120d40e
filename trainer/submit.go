package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// submitted is a rollout whose result was not handed out yet.
type submitted struct {
	request schema.Request
	lane    int
	seq     uint64 // of its message in the queue
	attempt int    // the highest seen
	at      time.Time
	cancel  *string // why it is to end
}

const (
	// auditEvery is how often outstanding rollouts are looked after that the
	// broker may have lost.
	auditEvery = 5 * time.Minute
	// cancelEvery repeats a cancel until the result is there.
	cancelEvery = 3 * time.Second
	// maxLoose is how many requests without a group go into one batch.
	maxLoose = 250
)

// Submit puts requests on the queue and remembers them as outstanding; their
// trainer is set to this one. Requests of the same group that stand beside each
// other are queued all or none, at most 1000 of them. While the queue is full,
// or the broker cannot be reached, it waits; when the context ends first, the
// error says why (broker.ErrQueueFull) and what was not taken is not
// outstanding. Requests that are invalid are refused before any is queued.
func (t *Trainer) Submit(ctx context.Context, requests []schema.Request) error {
	lane := 2
	if t.cfg.Lane != nil {
		lane = *t.cfg.Lane
	}
	batches, err := t.batches(requests)
	if err != nil {
		return err
	}
	for _, batch := range batches {
		if err := t.submit(ctx, lane, batch); err != nil {
			return err
		}
	}
	return nil
}

func (t *Trainer) batches(requests []schema.Request) ([][]schema.Request, error) {
	var out [][]schema.Request
	for i := range requests {
		r := requests[i]
		r.Trainer = t.cfg.Name
		if r.V == 0 {
			r.V = schema.Version
		}
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("requests[%d]: %w", i, err)
		}
		last := len(out) - 1
		if last >= 0 && out[last][0].Group == r.Group && (r.Group != "" || len(out[last]) < maxLoose) {
			out[last] = append(out[last], r)
		} else {
			out = append(out, []schema.Request{r})
		}
		if n := len(out[len(out)-1]); n > broker.MaxBatch {
			return nil, &schema.InvalidError{Field: fmt.Sprintf("requests[%d].group", i), Value: r.Group, Want: fmt.Sprintf("at most %d rollouts in a group", broker.MaxBatch)}
		}
	}
	return out, nil
}

func (t *Trainer) submit(ctx context.Context, lane int, batch []schema.Request) error {
	entries := make([]entry, len(batch))
	t.mu.Lock()
	for i := range batch {
		if t.outstanding[batch[i].ID] == nil {
			t.outstanding[batch[i].ID] = &submitted{request: batch[i], lane: lane, at: time.Now()}
		}
		entries[i] = entry{Submit: &batch[i], Lane: lane}
	}
	t.mu.Unlock()                           // calls are taken while the disk is written
	err := t.ledger.write(true, entries...) // before the broker hears of it
	var seqs []uint64
	if err == nil {
		t.tellHold() // before a worker can have them
		seqs, err = t.enqueue(ctx, lane, batch)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		for i := range batch {
			delete(t.outstanding, batch[i].ID)
			entries[i] = entry{ID: batch[i].ID, Done: true}
		}
		return errors.Join(err, t.ledger.write(false, entries...))
	}
	for i := range batch {
		if s := t.outstanding[batch[i].ID]; s != nil {
			s.seq = seqs[i]
		}
		entries[i] = entry{ID: batch[i].ID, Seq: seqs[i]}
	}
	return t.ledger.write(false, entries...)
}

// enqueue submits until the broker has taken the batch.
func (t *Trainer) enqueue(ctx context.Context, lane int, batch []schema.Request) ([]uint64, error) {
	wait := 50 * time.Millisecond
	for {
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		seqs, err := t.side.Submit(op, lane, batch)
		cancel()
		var large *broker.TooLargeError
		var invalid *schema.InvalidError
		if err == nil || errors.As(err, &large) || errors.As(err, &invalid) {
			return seqs, err
		}
		t.cfg.Log.Debug().Err(err).Msg("requests are not on the queue yet")
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(err, context.Cause(ctx))
		case <-t.life.Done():
			timer.Stop()
			return nil, context.Cause(t.life)
		}
		wait = min(wait*2, 2*time.Second)
	}
}

// audit looks after outstanding rollouts: whatever the broker lost is
// submitted again, one by one, and no more often than it was lost.
func (t *Trainer) audit() {
	t.mu.Lock()
	var old []schema.ID
	for id, s := range t.outstanding {
		if time.Since(s.at) >= t.cfg.AuditEvery {
			old = append(old, id)
		}
	}
	t.mu.Unlock()
	for _, id := range old {
		if err := t.auditOne(id); err != nil {
			if t.life.Err() != nil {
				return
			}
			t.cfg.Log.Warn().Err(err).Str("rollout", string(id)).Msg("it is not known whether a rollout was lost; the next round looks again")
			break // the broker cannot be reached
		}
	}
}

func (t *Trainer) auditOne(id schema.ID) error {
	ctx, cancel := context.WithTimeout(t.life, 10*time.Second)
	defer cancel()
	state, err := t.side.State(ctx, id)
	switch {
	case err == nil && state.Status.Terminal():
		t.onHint(id)
		return nil
	case err == nil: // the workers look after it
		t.sawAttempt(id, state.Attempt)
		return nil
	case !errors.Is(err, broker.ErrNotFound):
		return err
	}
	if _, err := t.side.Result(ctx, id); err == nil {
		t.onHint(id)
		return nil
	} else if !errors.Is(err, broker.ErrNotFound) {
		return err
	}
	t.mu.Lock()
	s := t.outstanding[id]
	if s == nil {
		t.mu.Unlock()
		return nil
	}
	request, lane, seq := s.request, s.lane, s.seq
	request.AttemptFloor = max(request.AttemptFloor, s.attempt)
	bundle := t.bundles[request.Task.Bundle]
	t.mu.Unlock()
	there, err := t.side.Queued(ctx, id, seq)
	if err != nil || there {
		return err
	}
	if bundle != nil {
		if _, err := t.side.PutBundle(ctx, bundle); err != nil {
			return err
		}
	}
	seqs, err := t.side.Submit(ctx, lane, []schema.Request{request})
	if errors.Is(err, broker.ErrQueueFull) {
		return nil // there is no room to lose it in
	}
	if err != nil {
		return err
	}
	t.cfg.Log.Warn().Str("rollout", string(id)).Msg("the broker had lost a request; it was submitted again")
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.outstanding[id]; s != nil {
		s.seq, s.at = seqs[0], time.Now()
	}
	return t.ledger.write(false, entry{ID: id, Seq: seqs[0]})
}

// sawAttempt remembers the highest attempt of a rollout, over restarts too.
func (t *Trainer) sawAttempt(id schema.ID, attempt int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.outstanding[id]
	if s == nil || attempt <= s.attempt {
		return
	}
	s.attempt = attempt
	if err := t.ledger.write(false, entry{ID: id, Attempt: attempt}); err != nil {
		t.cfg.Log.Warn().Err(err).Msg("an attempt was not written down")
	}
}

// Cancel ends rollouts, queued or running. Each still gets its result, which
// says that it was cancelled, or how it ended if that was faster. For rollouts
// that are outstanding here the wish is repeated until the result is there.
func (t *Trainer) Cancel(ids []schema.ID, reason string) error {
	t.mu.Lock()
	for _, id := range ids {
		if s := t.outstanding[id]; s != nil {
			s.cancel = &reason
		}
	}
	t.mu.Unlock()
	return t.askToCancel(ids, reason)
}

// CancelGroup ends the outstanding rollouts of a group.
func (t *Trainer) CancelGroup(group, reason string) error {
	return t.Cancel(t.which(func(s *submitted) bool { return s.request.Group == group }), reason)
}

// CancelAll ends every outstanding rollout.
func (t *Trainer) CancelAll(reason string) error {
	return t.Cancel(t.which(func(*submitted) bool { return true }), reason)
}

func (t *Trainer) which(want func(*submitted) bool) []schema.ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []schema.ID
	for id, s := range t.outstanding {
		if want(s) {
			ids = append(ids, id)
		}
	}
	return ids
}

// cancelsPerMessage keeps one worker from getting all the work.
const cancelsPerMessage = 200

func (t *Trainer) askToCancel(ids []schema.ID, reason string) error {
	for len(ids) > 0 {
		n := min(len(ids), cancelsPerMessage)
		if err := t.side.Cancel(ids[:n], reason); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// repeatCancels asks again for what has no result yet.
func (t *Trainer) repeatCancels() {
	wanted := map[string][]schema.ID{}
	t.mu.Lock()
	for id, s := range t.outstanding {
		if s.cancel != nil {
			wanted[*s.cancel] = append(wanted[*s.cancel], id)
		}
	}
	t.mu.Unlock()
	for reason, ids := range wanted {
		if err := t.askToCancel(ids, reason); err != nil {
			t.cfg.Log.Debug().Err(err).Msg("a cancel was not sent; it is repeated")
		}
	}
}
