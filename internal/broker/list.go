package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// listWindow is the number of sequences in which States looks first.
const listWindow = 256

// States reads the newest states of a trainer's rollouts, the newest first: those
// with a sequence below before (0: all), up to limit. It sends one request per
// state, and leaves out an unreadable state. A trainer has the rights for it.
func (b *Broker) States(ctx context.Context, tid string, before uint64, limit int) (list []Record[schema.State], err error) {
	s, err := b.FreshStream(ctx, subjects.Records(tid))
	if err != nil {
		return nil, err
	}
	has := s.CachedInfo().State
	if has.Msgs == 0 {
		return nil, nil
	}
	if before == 0 || before > has.LastSeq+1 {
		before = has.LastSeq + 1
	}
	// The server finds the next message after a sequence, and not the one before it.
	for width := uint64(listWindow); before > has.FirstSeq && len(list) < limit; width *= 2 {
		from := has.FirstSeq
		if before > from+width {
			from = before - width
		}
		var found []Record[schema.State]
		err := each(ctx, s, subjects.StateFilter(tid), from, func(m *jetstream.RawStreamMsg) bool {
			r := Record[schema.State]{Seq: m.Sequence}
			if m.Sequence < before && DecodeRecord(m.Subject, m.Data, &r.Value) == nil {
				found = append(found, r)
			}
			return m.Sequence < before
		})
		if err != nil {
			return nil, err
		}
		slices.Reverse(found)
		list, before = append(list, found...), from
	}
	return list[:min(limit, len(list))], nil
}

// Waiting calls handle for the requests in a trainer's queue, the oldest first, until
// it returns false, at most limit times. It sends one request per message. A request
// of a rollout that runs is in the queue, too. A trainer has the rights for it.
func (b *Broker) Waiting(ctx context.Context, tid string, limit int, handle func(*schema.Request) bool) error {
	s, err := b.FreshStream(ctx, subjects.Queue(tid))
	if err != nil {
		return err
	}
	return each(ctx, s, ">", 1, func(m *jetstream.RawStreamMsg) bool {
		limit--
		var r schema.Request
		if schema.Decode(m.Data, &r) != nil {
			return limit > 0
		}
		return handle(&r) && limit > 0
	})
}

// each reads the messages of a stream from a sequence, one by one, until handle
// returns false.
func each(ctx context.Context, s jetstream.Stream, filter string, from uint64, handle func(*jetstream.RawStreamMsg) bool) error {
	for {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		m, err := s.GetMsg(op, from, jetstream.WithGetMsgSubject(filter))
		cancel()
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream %s: %w", s.CachedInfo().Config.Name, Reach(err))
		}
		if !handle(m) {
			return nil
		}
		from = m.Sequence + 1
	}
}
