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

// maxLoose is the number of requests without a group in one batch.
const maxLoose = 250

// submitter puts requests on the queue.
type submitter struct {
	*base
	outstanding *outstanding
	holds       *holds
}

// submit makes requests outstanding and puts them on the queue.
func (s *submitter) submit(ctx context.Context, requests []schema.Request) error {
	batches, err := s.batches(requests)
	if err == nil {
		_, err = s.requests.CheckOffered(ctx, requests)
	}
	if err != nil {
		return err
	}
	for _, batch := range batches {
		if err := s.submitBatch(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// batches checks requests, and joins the ones that are queued together.
func (s *submitter) batches(requests []schema.Request) ([][]schema.Request, error) {
	var out [][]schema.Request
	for i := range requests {
		r := s.mine(requests[i])
		if r.V == 0 {
			r.V = schema.Version
		}
		if err := schema.Validate(&r); err != nil {
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

// submitBatch queues a group whole, and other requests as slots become free.
func (s *submitter) submitBatch(ctx context.Context, batch []schema.Request) error {
	group := batch[0].Group
	s.wait(group, len(batch))
	defer func() { s.wait(group, -len(batch)) }()
	for len(batch) > 0 {
		some, fresh, err := s.admit(ctx, batch)
		if err != nil {
			return err
		}
		batch = batch[len(some):]
		s.wait(group, -len(some))
		if err := s.submitAdmitted(ctx, some, fresh); err != nil {
			return err
		}
		s.outstanding.works()
	}
	return nil
}

// wait counts n more requests of a group that wait for a slot.
func (s *submitter) wait(group string, n int) {
	if !s.outstanding.slots.wait(group, n) {
		s.outstanding.hints.wake(group)
	}
}

// admit waits for free slots and makes rollouts outstanding: all of a group, or as
// many other requests as fit. fresh says which were not outstanding before. The
// caller calls bg.Done when their outcome is written.
func (s *submitter) admit(ctx context.Context, batch []schema.Request) (some []schema.Request, fresh []bool, err error) {
	slots := s.outstanding.slots
	select {
	case slots.turn <- struct{}{}:
		defer func() { <-slots.turn }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	case <-s.life.Done():
		return nil, nil, context.Cause(s.life)
	}
	for {
		missing := 0
		for i := range batch {
			if _, ok := s.outstanding.get(batch[i].ID); !ok {
				missing++
			}
		}
		n, freed := slots.room(batch, missing)
		if n > 0 {
			if !s.enter() { // Close keeps the ledger open until the outcome is written
				return nil, nil, context.Cause(s.life)
			}
			some, fresh = batch[:n], make([]bool, n)
			for i := range some {
				fresh[i] = s.outstanding.add(&submitted{request: some[i], lane: s.lane(), at: time.Now(), sending: true}) // an earlier submit of the same id may have succeeded
			}
			return some, fresh, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-s.life.Done():
			return nil, nil, context.Cause(s.life)
		}
	}
}

func (s *submitter) submitAdmitted(ctx context.Context, batch []schema.Request, fresh []bool) error {
	defer s.bg.Done()
	ledger := s.outstanding.ledger
	entries := make([]entry, len(batch))
	for i := range batch {
		entries[i] = entry{Submit: &batch[i], Lane: s.lane()}
	}
	err := ledger.write(true, entries...) // before the broker gets the requests
	seqs, unsure := make([]uint64, len(batch)), false
	if err == nil {
		s.holds.announce() // before a worker can take the requests
		unsure, err = s.enqueue(ctx, batch, seqs)
	}
	if unsure {
		err = errors.Join(ErrUnsure, err)
	}
	entries = entries[:0]
	for i := range batch {
		id := batch[i].ID
		if fresh[i] {
			s.outstanding.change(id, func(of *submitted) { of.sending = false })
		}
		switch {
		case seqs[i] > 0:
			s.outstanding.change(id, func(of *submitted) { of.seq = seqs[i] })
			entries = append(entries, entry{ID: id, Seq: seqs[i]})
		case fresh[i] && !unsure:
			err = errors.Join(err, s.outstanding.withdraw(id))
		}
	}
	return errors.Join(err, ledger.write(false, entries...))
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
func (s *submitter) enqueue(ctx context.Context, batch []schema.Request, seqs []uint64) (unsure bool, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.life, func() { stop(context.Cause(s.life)) })()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	for wait := 50 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		got, err := s.requests.Submit(op, s.lane(), batch)
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
		s.cfg.Log.Debug().Err(err).Msg("requests are not on the queue yet")
		if !sleep(ctx, wait) {
			return unsure, errors.Join(err, context.Cause(ctx))
		}
	}
}
