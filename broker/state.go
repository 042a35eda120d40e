package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// errMoved means that somebody else wrote the record first.
var errMoved = errors.New("the record was changed by another")

// last reads the newest message of a subject through the stream's leader; ok
// is false when there is none.
func (b *Broker) last(ctx context.Context, subject string, into schema.Message) (seq uint64, ok bool, err error) {
	stream, err := b.js.Stream(ctx, subjects.StreamRollouts)
	if err != nil {
		return 0, false, fmt.Errorf("open stream %s: %w", subjects.StreamRollouts, err)
	}
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read %s: %w", subject, err)
	}
	if err := schema.Decode(m.Data, into); err != nil {
		return m.Sequence, true, fmt.Errorf("read %s: %w", subject, err)
	}
	return m.Sequence, true, nil
}

// put writes the newest message of a subject if its last sequence is still
// expect (0: none yet); otherwise errMoved.
func (b *Broker) put(ctx context.Context, subject string, m schema.Message, expect uint64) (uint64, error) {
	data, err := schema.Encode(m)
	if err != nil {
		return 0, err
	}
	if err := checkSize(b.bulk, subject, len(data)); err != nil {
		return 0, err
	}
	ack, err := b.js.Publish(ctx, subject, data, jetstream.WithExpectLastSequencePerSubject(expect))
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, errMoved
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", subject, err)
	}
	return ack.Sequence, nil
}

// State reads the state record of a rollout; ErrNotFound when it has none yet.
func (b *Broker) State(ctx context.Context, id schema.ID) (schema.State, error) {
	var s schema.State
	_, ok, err := b.last(ctx, subjects.State(id), &s)
	if err == nil && !ok {
		err = fmt.Errorf("state of %s: %w", id, ErrNotFound)
	}
	return s, err
}

// Result reads the result of a rollout; ErrNotFound while it has none.
func (b *Broker) Result(ctx context.Context, id schema.ID) (schema.Result, error) {
	var r schema.Result
	_, ok, err := b.last(ctx, subjects.Result(id), &r)
	if err == nil && !ok {
		err = fmt.Errorf("result of %s: %w", id, ErrNotFound)
	}
	return r, err
}

func nowMS() int64 { return time.Now().UnixMilli() }
