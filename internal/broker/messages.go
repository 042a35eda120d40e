package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// Messages reads and writes the messages of streams.
type Messages struct {
	*link
	streams *Streams
}

// Last reads the newest message of a subject through its stream's leader; nil if
// there is none.
func (h *Messages) Last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return h.read(ctx, stream, subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetLastMsgForSubject(ctx, subject)
	})
}

// At reads the message of a stream with this sequence; nil if there is none.
func (h *Messages) At(ctx context.Context, stream string, seq uint64) (*jetstream.RawStreamMsg, error) {
	return h.read(ctx, stream, fmt.Sprintf("message %d of %s", seq, stream), func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return s.GetMsg(ctx, seq)
	})
}

func (h *Messages) read(ctx context.Context, stream, what string, get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error)) (*jetstream.RawStreamMsg, error) {
	s, err := h.streams.Open(ctx, stream)
	if err != nil {
		return nil, err
	}
	ask := func() (*jetstream.RawStreamMsg, error) {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		return get(op, s)
	}
	m, err := ask()
	if h.streams.reopen(ctx, stream, err) {
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

// Put writes a message if the last sequence of its subject is still expect (0:
// the subject has no message). Otherwise it returns ErrMoved.
func (h *Messages) Put(ctx context.Context, subject string, m schema.Message, expect uint64) (uint64, error) {
	msg, err := Expecting(subject, m, expect)
	if err != nil {
		return 0, err
	}
	return h.PutMsg(ctx, msg)
}

// PutMsg writes a message to the stream of its subject. If the message expects
// another sequence than the last, it returns ErrMoved.
func (h *Messages) PutMsg(ctx context.Context, msg *nats.Msg) (uint64, error) {
	if err := h.checkSize(msg.Subject, len(msg.Data)); err != nil {
		return 0, err
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	ack, err := h.js.PublishMsg(op, msg, jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == wire.CodeWrongLast || api.ErrorCode == wire.CodeWrongLastConst) {
		return 0, ErrMoved
	}
	if err != nil {
		h.streams.ReopenFor(ctx, msg.Subject, err) // for the next try
		return 0, fmt.Errorf("write %s: %w", msg.Subject, Reach(err))
	}
	return ack.Sequence, nil
}
