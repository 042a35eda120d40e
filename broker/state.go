package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// errMoved means that somebody else wrote the record first.
var errMoved = errors.New("the record was changed by another")

// last reads the newest message of a subject through its stream's leader; nil
// when there is none.
func (b *Broker) last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetLastMsgForSubject(ctx, subject)
	})
}

// message reads the message of a stream with this sequence; nil when it is
// gone.
func (b *Broker) message(ctx context.Context, stream string, seq uint64) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, fmt.Sprintf("message %d of %s", seq, stream), func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetMsg(ctx, seq)
	})
}

func (b *Broker) read(ctx context.Context, stream, what string, get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error)) (*jetstream.RawStreamMsg, error) {
	s, err := b.stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	op, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	m, err := get(op, s)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, reach(err))
	}
	return m, nil
}

// opTimeout bounds one request to the server.
const opTimeout = 5 * time.Second

// stream gives a handle to a stream; asking the server once for each.
func (b *Broker) stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if s, ok := b.streams.Load(name); ok {
		if stream, ok := s.(jetstream.Stream); ok {
			return stream, nil
		}
	}
	op, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	s, err := b.js.Stream(op, name)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, reach(err))
	}
	b.streams.Store(name, s)
	return s, nil
}

func (b *Broker) lastRollout(ctx context.Context, subject string, into schema.Message) (seq uint64, ok bool, err error) {
	m, err := b.last(ctx, subjects.StreamRollouts, subject)
	if m == nil || err != nil {
		return 0, false, err
	}
	if err := schema.Decode(m.Data, into); err != nil {
		return m.Sequence, true, fmt.Errorf("read %s: %w", subject, err)
	}
	return m.Sequence, true, nil
}

// put writes the newest message of a subject if its last sequence is still
// expect (0: none yet); otherwise errMoved.
func (b *Broker) put(ctx context.Context, subject string, m schema.Message, expect uint64) (uint64, error) {
	msg, err := expecting(subject, m, expect)
	if err != nil {
		return 0, err
	}
	return b.putMsg(ctx, msg)
}

func (b *Broker) putMsg(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := checkSize(b.bulk, msg.Subject, len(msg.Data)); err != nil {
		return 0, err
	}
	op, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	ack, err := b.js.PublishMsg(op, msg, jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == codeWrongLast || api.ErrorCode == codeWrongLastConst) {
		return 0, errMoved
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", msg.Subject, reach(err))
	}
	return ack.Sequence, nil
}

// commit writes a result, on the condition that the state is still the one of
// this sequence, and then the terminal state. It tries again until it is known
// whether they are stored. errMoved: the state was changed; a result that is
// there then stands, and whoever changed the state finds it (see finish).
func (b *Broker) commit(ctx context.Context, s schema.State, stateSeq uint64, r schema.Result) (uint64, error) {
	if crash.Broken("I2") {
		s.Attempt += 7
	}
	result, err := expecting(subjects.Result(r.ID), &r, stateSeq)
	if err != nil {
		return 0, err
	}
	result.Header[headerExpectOf] = []string{subjects.State(r.ID)}
	result.Header[headerMsgID] = []string{fmt.Sprintf("%s.%d.%d", r.ID, r.Attempt, stateSeq)} // a second try is no second result
	state, err := expecting(subjects.State(r.ID), &s, stateSeq)
	if err != nil {
		return 0, err
	}
	if crash.Broken("I1") {
		result.Header, state.Header = nats.Header{}, nats.Header{}
	}
	what := "commit the result of " + string(r.ID)
	if _, err := insist(ctx, b, what, func(ctx context.Context) (uint64, error) { return b.putMsg(ctx, result) }); err != nil {
		return 0, err
	}
	crash.Here("commit.between")
	return insist(ctx, b, what, func(ctx context.Context) (uint64, error) { return b.putMsg(ctx, state) })
}

// commitAtOnce writes the result and the terminal state of a rollout that
// nobody runs in one atomic batch: all that is known of it is what was read.
// errMoved: they are not stored, or were by an earlier try.
func (b *Broker) commitAtOnce(ctx context.Context, s schema.State, stateSeq uint64, r schema.Result) (uint64, error) {
	return insist(ctx, b, "end "+string(r.ID), func(ctx context.Context) (uint64, error) {
		result, err := expecting(subjects.Result(r.ID), &r, 0)
		if err != nil {
			return 0, err
		}
		state, err := expecting(subjects.State(r.ID), &s, stateSeq)
		if err != nil {
			return 0, err
		}
		return b.batch(ctx, result, state)
	})
}

// tellAfter is how many tries in vain, which take about 7 s, somebody should
// hear of.
const tellAfter = 5

// insist tries again until the server has answered: with what was asked for, or
// with a refusal that is not of the moment.
func insist[T any](ctx context.Context, b *Broker, what string, try func(context.Context) (T, error)) (T, error) {
	for n := 0; ; n++ {
		op, cancel := context.WithTimeout(ctx, opTimeout)
		got, err := try(op)
		cancel()
		if err == nil || refused(err) && !passing(err) || errors.Is(err, nats.ErrConnectionClosed) {
			return got, err
		}
		level := zerolog.DebugLevel
		if n == tellAfter {
			level = zerolog.WarnLevel
		}
		b.log.WithLevel(level).Err(err).Str("what", what).Msg("the server is asked again")
		if perr := pause(ctx, backoff(n)); perr != nil {
			return got, errors.Join(err, perr)
		}
	}
}

// concluded is the state of a rollout that ends with this result.
func concluded(s schema.State, r *schema.Result) schema.State {
	s.Status, s.Fault, s.Ack = r.Status, r.Fault, ""
	return s
}

// finish makes a state terminal whose result is there: who wrote that did not
// come to write the state, or is about to. It reports whether there is a
// result. Whoever claims a rollout that had an attempt before must ask: the
// claim is what keeps a later result of that attempt out, so that what is not
// there after it will never be.
func (b *Broker) finish(ctx context.Context, id schema.ID, state schema.State, seq uint64) (bool, error) {
	return insist(ctx, b, "end "+string(id), func(ctx context.Context) (bool, error) {
		var r schema.Result
		_, found, err := b.lastRollout(ctx, subjects.Result(id), &r)
		if !found || err != nil {
			return false, err
		}
		next := concluded(state, &r)
		next.Attempt = r.Attempt
		_, err = b.put(ctx, subjects.State(id), &next, seq)
		return true, err
	})
}

func (b *Broker) readState(ctx context.Context, id schema.ID) (s schema.State, seq uint64, found bool, err error) {
	for try := 0; ; try++ {
		seq, found, err = b.lastRollout(ctx, subjects.State(id), &s)
		if err == nil {
			return s, seq, found, nil
		}
		if perr := pause(ctx, backoff(try)); perr != nil {
			return s, 0, false, errors.Join(err, perr)
		}
	}
}

// State reads the state record of a rollout; ErrNotFound when it has none yet.
func (b *Broker) State(ctx context.Context, id schema.ID) (schema.State, error) {
	var s schema.State
	_, ok, err := b.lastRollout(ctx, subjects.State(id), &s)
	if err == nil && !ok {
		err = fmt.Errorf("state of %s: %w", id, ErrNotFound)
	}
	return s, err
}

// Result reads the result of a rollout; ErrNotFound while it has none.
func (b *Broker) Result(ctx context.Context, id schema.ID) (schema.Result, error) {
	var r schema.Result
	_, ok, err := b.lastRollout(ctx, subjects.Result(id), &r)
	if err == nil && !ok {
		err = fmt.Errorf("result of %s: %w", id, ErrNotFound)
	}
	return r, err
}

func nowMS() int64 { return time.Now().Add(crash.Skew()).UnixMilli() }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
