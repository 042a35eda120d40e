package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// restoreEvery is the number of rounds between two looks for classes without a
// consumer.
const restoreEvery = 10

// restore makes the missing consumers of classes that have requests. A worker that
// parks a request makes the consumer before and looks for it afterwards. But the
// queue with its consumers may be lost and made again in between, and the worker may
// die before it looks. There may be a million parked requests, so it lists them only
// if the queue has more messages than its consumers have.
func (j *trainerCheck) restore(ctx context.Context, s jetstream.Stream, known []queued, waiting uint64) error {
	if j.rounds++; j.rounds%restoreEvery != 2 || waiting >= s.CachedInfo().State.Msgs {
		return nil
	}
	op, cancel := context.WithTimeout(ctx, 2*wire.OpTimeout)
	defer cancel()
	info, err := s.Info(op, jetstream.WithSubjectFilter(subjects.ParkedFilter(j.tid)))
	if err != nil {
		return fmt.Errorf("list the parked requests of %s: %w", j.tid, broker.Reach(err))
	}
	var errs []error // each of one class
	seen := map[class]bool{}
	for _, c := range known {
		seen[c.class] = true
	}
	for subject := range info.State.Subjects {
		lane, name, ok := subjects.ParseParked(subject)
		if c := (class{lane, name}); ok && !seen[c] {
			seen[c] = true
			errs = append(errs, j.restoreClass(op, c, subject))
		}
	}
	return errors.Join(errs...)
}

// restoreClass makes the consumer of a class that has a request on a subject.
func (j *trainerCheck) restoreClass(ctx context.Context, c class, subject string) error {
	m, err := j.broker.Messages.Last(ctx, subjects.Queue(j.tid), subject)
	if m == nil || err != nil {
		return err
	}
	meta := ""
	if c.name != subjects.ClassDelay {
		var req schema.Request
		if err := wire.Decode(m.Data, &req); err != nil {
			return fmt.Errorf("read the request on %s: %w", subject, err)
		}
		req = req.WithDefaults()
		if _, meta, err = classOf(c.lane, req.Needs()); err != nil {
			return err
		}
	}
	made, err := j.resolver.roster.ensureClass(ctx, j.tid, c, meta)
	if made {
		j.log.Warn().Str("trainer", j.tid).Str("class", c.name).Int("lane", c.lane).Msg("parked requests had no consumer that workers can read; it was made again")
	}
	return err
}
