package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Record is a message of a stream that keeps the last one of each subject, with
// its sequence. Seq is 0 if the subject has no message.
type Record[T any] struct {
	Value T
	Seq   uint64
}

// Last reads the newest message of a subject through its stream's leader; nil if
// there is none.
func (b *Broker) Last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetLastMsgForSubject(ctx, subject)
	})
}

// Message reads the message of a stream with this sequence; nil if there is none.
func (b *Broker) Message(ctx context.Context, stream string, seq uint64) (*jetstream.RawStreamMsg, error) {
	return b.read(ctx, stream, fmt.Sprintf("message %d of %s", seq, stream), func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetMsg(ctx, seq)
	})
}

func (b *Broker) read(ctx context.Context, stream, what string, get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error)) (*jetstream.RawStreamMsg, error) {
	s, err := b.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	ask := func() (*jetstream.RawStreamMsg, error) {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		return get(op, s)
	}
	m, err := ask()
	if b.reopen(ctx, stream, err) {
		m, err = ask()
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, Reach(err))
	}
	return m, nil
}

// Stream returns the handle of a stream. It asks the server once per stream, and
// makes a missing stream of a trainer again.
func (b *Broker) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if s, ok := b.streams.Load(name); ok {
		if stream, ok := s.(jetstream.Stream); ok {
			return stream, nil
		}
	}
	ask := func() (jetstream.Stream, error) {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		return b.js.Stream(op, name)
	}
	s, err := ask()
	if b.reopen(ctx, name, err) {
		s, err = ask()
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, Reach(err))
	}
	b.streams.Store(name, s)
	return s, nil
}

// ReadRecord reads the newest record of a subject of the rollouts' stream through
// its leader. Seq is 0 if there is none. The error for an unreadable one is
// *UnreadableRecord.
func ReadRecord[T any, M interface {
	*T
	schema.Message
}](ctx context.Context, b *Broker, subject string) (r Record[T], err error) {
	tid, _ := subjects.TrainerOf(subject)
	m, err := b.Last(ctx, subjects.Records(tid), subject)
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

// Put writes a message if the last sequence of its subject is still expect (0:
// the subject has no message). Otherwise it returns ErrMoved.
func (b *Broker) Put(ctx context.Context, subject string, m schema.Message, expect uint64) (uint64, error) {
	msg, err := Expecting(subject, m, expect)
	if err != nil {
		return 0, err
	}
	return b.PutMsg(ctx, msg)
}

// PutMsg writes a message to the stream of its subject. If the message expects
// another sequence than the last, it returns ErrMoved.
func (b *Broker) PutMsg(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := b.CheckSize(msg.Subject, len(msg.Data)); err != nil {
		return 0, err
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	ack, err := b.js.PublishMsg(op, msg, jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == wire.CodeWrongLast || api.ErrorCode == wire.CodeWrongLastConst) {
		return 0, ErrMoved
	}
	if err != nil {
		b.ReopenFor(ctx, msg.Subject, err) // for the next try
		return 0, fmt.Errorf("write %s: %w", msg.Subject, Reach(err))
	}
	return ack.Sequence, nil
}

// Insist repeats try until it succeeds, the server refuses it for good, the
// connection is closed or the context ends. The log names the request by what.
func Insist[T any](ctx context.Context, b *Broker, what string, try func(context.Context) (T, error)) (T, error) {
	for n := 0; ; n++ {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		got, err := try(op)
		cancel()
		if err == nil || Rejected(err) && !Passing(err) || errors.Is(err, nats.ErrConnectionClosed) {
			return got, err
		}
		level := zerolog.DebugLevel
		if n == wire.TellAfter {
			level = zerolog.WarnLevel
		}
		b.log.WithLevel(level).Err(err).Str("what", what).Msg("the server is asked again")
		if perr := wire.Pause(ctx, wire.Backoff(n)); perr != nil {
			return got, errors.Join(err, perr)
		}
	}
}

// repeatFor bounds the repetitions of a request.
const repeatFor = 6 * wire.OpTimeout

// untilAnswered calls try, with a limit of wire.OpTimeout, until the server answers,
// ctx ends or repeatFor is over.
func untilAnswered[T any](ctx context.Context, try func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, repeatFor)
	defer cancel()
	for {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		got, err := try(op)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return got, err
		}
	}
}

// State reads the state record of a rollout; ErrNotFound when it has none yet.
func (b *Broker) State(ctx context.Context, id schema.ID) (schema.State, error) {
	r, err := ReadRecord[schema.State](ctx, b, subjects.State(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("state of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// Result reads the result of a rollout; ErrNotFound while it has none.
func (b *Broker) Result(ctx context.Context, id schema.ID) (schema.Result, error) {
	r, err := ReadRecord[schema.Result](ctx, b, subjects.Result(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("result of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// Request reads the copy of a rollout's request that its worker keeps; ErrNotFound
// before a worker has it.
func (b *Broker) Request(ctx context.Context, id schema.ID) (schema.Request, error) {
	r, err := ReadRecord[schema.Request](ctx, b, subjects.RequestCopy(id))
	if err == nil && r.Seq == 0 {
		err = fmt.Errorf("request of %s: %w", id, ErrNotFound)
	}
	return r.Value, err
}

// FreshStream is Stream with the state of the stream at this moment, which costs a
// request.
func (b *Broker) FreshStream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := b.js.Stream(ctx, name)
	if b.reopen(ctx, name, err) {
		s, err = b.js.Stream(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, Reach(err))
	}
	return s, nil
}
