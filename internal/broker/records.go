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

// Records reads the records of rollouts and workers in the streams.
type Records struct {
	*link
	streams  *Streams
	messages *Messages
}

// Record is a message of a stream that keeps the last one of each subject, with
// its sequence. Seq is 0 if the subject has no message.
type Record[T any] struct {
	Value T
	Seq   uint64
}

// ReadRecord reads the newest record of a subject of the rollouts' stream through
// its leader. Seq is 0 if there is none. The error for an unreadable one is
// *UnreadableRecord.
func ReadRecord[T any, M interface {
	*T
	schema.Message
}](ctx context.Context, from *Messages, subject string) (r Record[T], err error) {
	tid, _ := subjects.TrainerOf(subject)
	m, err := from.Last(ctx, subjects.Records(tid), subject)
	if m == nil || err != nil {
		return r, err
	}
	r.Seq = m.Sequence
	if err := DecodeRecord(subject, m.Data, M(&r.Value)); err != nil {
		return r, &UnreadableRecord{subject, m.Sequence, m.Data, err}
	}
	return r, nil
}

// DecodeRecord decodes a record and checks that a state is that of the rollout
// in the subject.
func DecodeRecord(subject string, data []byte, into schema.Message) error {
	if err := schema.Decode(data, into); err != nil {
		return err
	}
	id, _ := subjects.ParseRecord(subject)
	if s, ok := into.(*schema.State); ok && s.ID != id {
		return fmt.Errorf("it is the state of %q", s.ID)
	}
	return nil
}

// State reads the state record of a rollout; ErrNotFound when it has none yet.
func (h *Records) State(ctx context.Context, id schema.ID) (schema.State, error) {
	r, err := ReadRecord[schema.State](ctx, h.messages, subjects.State(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("state of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// Result reads the result of a rollout; ErrNotFound while it has none.
func (h *Records) Result(ctx context.Context, id schema.ID) (schema.Result, error) {
	r, err := ReadRecord[schema.Result](ctx, h.messages, subjects.Result(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("result of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// Request reads the copy of a rollout's request that a worker keeps; ErrNotFound
// before a worker has it, and if the rollout ended before any worker could read it.
func (h *Records) Request(ctx context.Context, id schema.ID) (schema.Request, error) {
	r, err := ReadRecord[schema.Request](ctx, h.messages, subjects.RequestCopy(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("request of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// Workers lists the workers that announced their presence within the last 40 s.
func (h *Records) Workers(ctx context.Context) ([]schema.Presence, error) {
	var out []schema.Presence
	err := h.messages.scanAll(ctx, subjects.StreamWorkers, subjects.PresenceFilter, func(m stored) {
		var p schema.Presence
		if err := schema.Decode(m.data, &p); err != nil {
			h.log.Warn().Err(err).Str("subject", m.subject).Msg("a worker's presence cannot be read")
			return
		}
		if p.Load != nil {
			p.Load.Load = schema.Known(p.Load.Load)
		}
		p.Offer.CPUs = schema.Known(p.Offer.CPUs)
		out = append(out, p)
	})
	return out, err
}

// listWindow is the number of sequences in which States looks first.
const listWindow = 256

// States reads the newest states of a trainer's rollouts, the newest first: those
// with a sequence below before (0: all), up to limit. It sends one request per
// state, and leaves out an unreadable state. A trainer has the rights for it.
func (h *Records) States(ctx context.Context, tid string, before uint64, limit int) (list []Record[schema.State], err error) {
	s, err := h.streams.Fresh(ctx, subjects.Records(tid))
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

// StatesAfter calls handle for the states of a trainer's rollouts with a sequence above
// after, in order. It returns the sequence up to which all is read, for the next call. If
// the server has lost its store, it begins anew. A trainer has the rights for it.
func (h *Records) StatesAfter(ctx context.Context, tid string, after uint64, handle func(*schema.State)) (uint64, error) {
	return h.after(ctx, subjects.Records(tid), subjects.StateFilter(tid), after, func(m *jetstream.RawStreamMsg) {
		var state schema.State
		if DecodeRecord(m.Subject, m.Data, &state) == nil {
			handle(&state)
		}
	})
}

// WaitingAfter is StatesAfter for the requests in a trainer's queue, each with the
// sequence of its message.
func (h *Records) WaitingAfter(ctx context.Context, tid string, after uint64, handle func(r *schema.Request, seq uint64)) (uint64, error) {
	return h.after(ctx, subjects.Queue(tid), ">", after, func(m *jetstream.RawStreamMsg) {
		var r schema.Request
		if schema.Decode(m.Data, &r) == nil {
			handle(&r, m.Sequence)
		}
	})
}

// End returns the place of the newest record of a trainer. A trainer has the rights for it.
func (h *Records) End(ctx context.Context, tid string) (Place, error) {
	s, err := h.streams.Fresh(ctx, subjects.Records(tid))
	if err != nil {
		return Place{}, err
	}
	has := s.CachedInfo()
	return Place{has.Created.UnixNano(), has.State.LastSeq}, nil
}

// ResultsAfter calls handle for the results of a trainer behind a place, in order, each with
// its size in bytes as it is stored, until it returns false, and returns the place of the
// last one. If the server has lost its store,
// it begins anew. A result that cannot be read is left out. A trainer has the rights for
// it.
func (h *Records) ResultsAfter(ctx context.Context, tid string, after Place, handle func(at Place, r *schema.Result, size int) bool) (Place, error) {
	s, err := h.streams.Fresh(ctx, subjects.Records(tid))
	if err != nil {
		return after, err
	}
	has := s.CachedInfo()
	if made := has.Created.UnixNano(); after.Stream != made {
		after = Place{Stream: made}
	}
	if after.Seq >= has.State.LastSeq {
		return after, nil
	}
	more := true
	err = each(ctx, s, subjects.ResultFilter(tid), after.Seq+1, func(m *jetstream.RawStreamMsg) bool {
		after.Seq = m.Sequence
		var r schema.Result
		if DecodeRecord(m.Subject, m.Data, &r) == nil && r.ID.Trainer() == tid {
			more = handle(after, &r, len(m.Data))
		}
		return more && ctx.Err() == nil
	})
	if err == nil && more && ctx.Err() == nil {
		after.Seq = max(after.Seq, has.State.LastSeq)
	}
	return after, err
}

func (h *Records) after(ctx context.Context, stream, filter string, after uint64, handle func(*jetstream.RawStreamMsg)) (uint64, error) {
	s, err := h.streams.Fresh(ctx, stream)
	if err != nil {
		return after, err
	}
	last := s.CachedInfo().State.LastSeq
	if last == after {
		return after, nil
	}
	if last < after {
		after = 0
	}
	err = each(ctx, s, filter, after+1, func(m *jetstream.RawStreamMsg) bool {
		handle(m)
		after = m.Sequence
		return ctx.Err() == nil
	})
	if err == nil {
		after = max(after, last)
	}
	return after, err
}

// Waiting calls handle for the requests in a trainer's queue with a sequence above after,
// the oldest first, until it returns false. It reads at most limit messages, with one request
// for each, and returns the sequence of the last one; 0: it read all. A request of a rollout
// that runs is in the queue, too. A trainer has the rights for it.
func (h *Records) Waiting(ctx context.Context, tid string, after uint64, limit int, handle func(*schema.Request) bool) (last uint64, err error) {
	s, err := h.streams.Fresh(ctx, subjects.Queue(tid))
	if err != nil {
		return 0, err
	}
	err = each(ctx, s, ">", after+1, func(m *jetstream.RawStreamMsg) bool {
		limit--
		var r schema.Request
		more := schema.Decode(m.Data, &r) != nil || handle(&r)
		if more = more && limit > 0; !more {
			last = m.Sequence
		}
		return more
	})
	return last, err
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
