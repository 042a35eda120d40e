package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

// submitted is a rollout without a delivered result.
type submitted struct {
	request schema.Request
	lane    int
	seq     uint64 // sequence number of its message in the queue
	attempt int    // the highest seen
	at      time.Time
	cancel  *string // reason of a cancel; nil: not cancelled
	over    bool    // it has a result, as far as is known
}

const (
	// auditEvery is the default of Config.AuditEvery.
	auditEvery = 5 * time.Minute
	// cancelEvery is the interval of repeated cancels.
	cancelEvery = 3 * time.Second
	// maxLoose is the number of requests without a group in one batch.
	maxLoose = 250
)

// Submit puts requests on the queue and makes them outstanding; it sets their
// Trainer to this one. Adjacent requests of one group are queued all or none,
// at most 1000 of them. While all slots are taken, the queue is full or the
// broker cannot be reached, Submit waits. If the context ends first, the error has
// the reason (queue.ErrQueueFull), and requests that are surely not on the queue are
// not outstanding; see ErrUnsure for the others. An invalid request, or one for
// an agent that no live worker has, is refused before any request is queued.
func (t *Trainer) Submit(ctx context.Context, requests []schema.Request) error {
	lane := t.lane()
	batches, err := t.batches(requests)
	if err == nil {
		err = t.checkAgents(ctx, requests)
	}
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

// mine returns a request in the name of this trainer, with the shard of this process
// if it has none.
func (t *Trainer) mine(r schema.Request) schema.Request {
	r.Trainer = t.cfg.Name
	if t.cfg.Shard != schema.DefaultShard { // the default needs no field
		r.Shard = cmp.Or(r.Shard, t.cfg.Shard)
	}
	return r
}

func (t *Trainer) batches(requests []schema.Request) ([][]schema.Request, error) {
	var out [][]schema.Request
	for i := range requests {
		r := t.mine(requests[i])
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

// submit queues a group whole, and other requests as slots become free.
func (t *Trainer) submit(ctx context.Context, lane int, batch []schema.Request) error {
	group := batch[0].Group
	t.countWaiting(group, len(batch))
	defer func() { t.countWaiting(group, -len(batch)) }()
	for len(batch) > 0 {
		some, fresh, err := t.admit(ctx, lane, batch)
		if err != nil {
			return err
		}
		batch = batch[len(some):]
		t.countWaiting(group, -len(some))
		if err := t.submitAdmitted(ctx, lane, some, fresh); err != nil {
			return err
		}
	}
	return nil
}

func (t *Trainer) submitAdmitted(ctx context.Context, lane int, batch []schema.Request, fresh []bool) error {
	defer t.bg.Done()
	entries := make([]entry, len(batch))
	for i := range batch {
		entries[i] = entry{Submit: &batch[i], Lane: lane}
	}
	err := t.ledger.write(true, entries...) // before the broker gets the requests
	seqs, unsure := make([]uint64, len(batch)), false
	if err == nil {
		t.tellHold() // before a worker can take the requests
		unsure, err = t.enqueue(ctx, lane, batch, seqs)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	entries = entries[:0]
	for i := range batch {
		id := batch[i].ID
		switch s := t.outstanding[id]; {
		case seqs[i] > 0:
			if s != nil {
				s.seq = seqs[i]
			}
			entries = append(entries, entry{ID: id, Seq: seqs[i]})
		case fresh[i] && !unsure:
			t.dropOutstanding(id)
			entries = append(entries, entry{ID: id, Done: true})
		}
	}
	if unsure {
		err = errors.Join(ErrUnsure, err)
	}
	return errors.Join(err, t.ledger.write(false, entries...))
}

// ErrUnsure is part of an error of Submit after which it is not known whether
// the requests of a group, or of up to 250 requests without a group, are on the
// queue. They stay outstanding, also over a restart: their results are delivered
// if they are queued, and otherwise the next audit submits them. Submitting them
// again is safe.
var ErrUnsure = errors.New("it is not known whether the requests are queued; they stay outstanding")

// enqueue repeats the submission until the broker has the batch, and sets the
// sequences of the requests that are surely on the queue. If it is not known
// whether the others are queued, unsure is true.
func (t *Trainer) enqueue(ctx context.Context, lane int, batch []schema.Request, seqs []uint64) (unsure bool, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(t.life, func() { stop(context.Cause(t.life)) })()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		got, err := t.requests.Submit(op, lane, batch)
		cancel()
		copy(seqs, got)
		if err == nil {
			return false, nil
		}
		unsure = unsure || !queue.Refused(err)
		var large *broker.TooLargeError
		var invalid *schema.InvalidError
		if errors.As(err, &large) || errors.As(err, &invalid) {
			return unsure, err
		}
		t.cfg.Log.Debug().Err(err).Msg("requests are not on the queue yet")
		if !sleep(ctx, wait) {
			return unsure, errors.Join(err, context.Cause(ctx))
		}
	}
}

// sleep reports whether the context lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// audit submits again the outstanding rollouts that the broker lost, each once
// per loss.
func (t *Trainer) audit() {
	if err := t.auditOlder(t.cfg.AuditEvery); err != nil && t.life.Err() == nil {
		t.cfg.Log.Warn().Err(err).Msg("it is not known whether a rollout was lost; the next round looks again")
	}
}

// auditOlder is audit for rollouts that were submitted at least so long ago.
func (t *Trainer) auditOlder(age time.Duration) error {
	t.mu.Lock()
	var old []schema.ID
	for id, s := range t.outstanding {
		if time.Since(s.at) >= age {
			old = append(old, id)
		}
	}
	t.mu.Unlock()
	for _, id := range old {
		if err := t.auditOne(id); err != nil {
			return fmt.Errorf("rollout %s: %w", id, err)
		}
	}
	return nil
}

func (t *Trainer) auditOne(id schema.ID) error {
	ctx, cancel := context.WithTimeout(t.life, 10*time.Second)
	defer cancel()
	state, err := t.requests.Records.State(ctx, id)
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
	if _, err := t.requests.Records.Result(ctx, id); err == nil {
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
	there, err := t.requests.Queued(ctx, id, seq)
	if err != nil || there {
		return err
	}
	if bundle != nil {
		if _, err := t.requests.PutBundle(ctx, bundle); err != nil {
			return err
		}
	}
	seqs, err := t.requests.Submit(ctx, lane, []schema.Request{request})
	if errors.Is(err, queue.ErrQueueFull) {
		return nil // with a full queue a request would be lost again
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

// sawAttempt keeps the highest attempt of a rollout, also over restarts.
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

// Cancel ends rollouts, queued or running. Each still gets a result: cancelled,
// or its own if it ended first. The reason, of at most 1024 bytes, becomes a part of
// the message of the result's fault. Cancels of rollouts that are outstanding here
// are repeated until the result arrives.
func (t *Trainer) Cancel(ids []schema.ID, reason string) error {
	if err := (&schema.Cancel{V: schema.Version, Reason: reason}).Validate(); err != nil {
		return err
	}
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

// CancelOlder ends the rollouts with an answer of a policy version below a number:
// for a trainer at version v that allows n versions between them, below v-n. The
// number of a version is the one at the end of its name. Only this process's
// answers to the rollout's last attempt count.
func (t *Trainer) CancelOlder(version int64, reason string) error {
	t.mu.Lock()
	var ids []schema.ID
	for id, r := range t.rollouts {
		if r.oldest >= 0 && r.oldest < version {
			ids = append(ids, id)
		}
	}
	t.mu.Unlock()
	return t.Cancel(ids, reason)
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

// cancelsPerMessage spreads the work over several workers.
const cancelsPerMessage = 200

func (t *Trainer) askToCancel(ids []schema.ID, reason string) error {
	for some := range slices.Chunk(ids, cancelsPerMessage) {
		if err := t.requests.Cancel(some, t.sequences(some), reason); err != nil {
			return err
		}
	}
	return nil
}

// sequences returns the sequence of each rollout's message in the queue; 0: not
// known.
func (t *Trainer) sequences(ids []schema.ID) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]uint64, len(ids))
	for i, id := range ids {
		out[i] = t.orphans[id]
		if s := t.outstanding[id]; s != nil {
			out[i] = s.seq
		}
	}
	return out
}

// orphaned is the reason of the cancels of orphans.
const orphaned = "the process that submitted it is gone"

// repeatCancels sends the cancels of rollouts without a result again.
func (t *Trainer) repeatCancels() {
	wanted := map[string][]schema.ID{}
	t.mu.Lock()
	for id, s := range t.outstanding {
		if s.cancel != nil {
			wanted[*s.cancel] = append(wanted[*s.cancel], id)
		}
	}
	for id := range t.orphans {
		wanted[orphaned] = append(wanted[orphaned], id)
	}
	t.mu.Unlock()
	for reason, ids := range wanted {
		if err := t.askToCancel(ids, reason); err != nil {
			t.cfg.Log.Debug().Err(err).Msg("a cancel was not sent; it is repeated")
		}
	}
}
