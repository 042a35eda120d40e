package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Results tells a trainer of the results and events of its rollouts.
type Results struct {
	broker *broker.Broker
	tid    string
}

// Store names the queue and the records of this trainer as they are now. Another name
// means that the server has lost one of them, and a worker has made it again.
func (r *Results) Store(ctx context.Context) (string, error) {
	name := ""
	for _, stream := range []string{subjects.Queue(r.tid), subjects.Records(r.tid)} {
		s, err := r.broker.Streams.Fresh(ctx, stream)
		if err != nil {
			return "", err
		}
		name += s.CachedInfo().Created.UTC().Format(time.RFC3339Nano) + " "
	}
	return name, nil
}

// From calls handle with the rollout of every result at sequence from or
// later, and returns the sequence for the next call. It reads one message per new
// result, however many rollouts are open. With from 0 it only returns the current
// end of the stream.
func (r *Results) From(ctx context.Context, from uint64, handle func(schema.ID)) (next uint64, err error) {
	name := subjects.Records(r.tid)
	s, err := r.broker.Streams.Fresh(ctx, name)
	if err != nil {
		return from, err
	}
	last := s.CachedInfo().State.LastSeq
	if from == 0 {
		return last + 1, nil
	}
	if last+1 < from { // the store was wiped
		from = 1
	}
	for from <= last {
		m, err := s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subjects.ResultFilter(r.tid)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return last + 1, nil
		}
		if err != nil {
			return from, fmt.Errorf("look for results: %w", err)
		}
		if id, ok := subjects.ParseRecord(m.Subject); ok {
			handle(id)
		}
		from = m.Sequence + 1
	}
	return from, nil
}

// Hints calls handle for every hint that a result of this trainer was committed,
// or that a request can have no result, until stop is called. Hints can be lost.
func (r *Results) Hints(handle func(schema.Hint)) (stop func(), err error) {
	return wire.Subscribe(r.broker.BulkConn(), subjects.TrainerResults(r.tid), func(m *nats.Msg) {
		var h schema.Hint
		if schema.Decode(m.Data, &h) == nil && (h.Fault != nil || h.ID.Trainer() == r.tid) {
			handle(h)
		}
	})
}

// Watch calls handle for the phase and wait events of this trainer's rollouts,
// until stop is called. Events can be lost.
func (r *Results) Watch(handle func(schema.Event)) (stop func(), err error) {
	return r.broker.Events.Progress(r.tid, handle)
}
