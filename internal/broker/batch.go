package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// MaxBatch is the largest number of messages in one atomic batch.
const MaxBatch = 1000

// Expecting returns a message that the server stores only if seq is the last
// sequence of its subject (0: the subject has no message).
func Expecting(subject string, m schema.Message, seq uint64) (*nats.Msg, error) {
	data, err := schema.Encode(m)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: subject, Data: data, Header: nats.Header{wire.HeaderExpect: {strconv.FormatUint(seq, 10)}}}, nil
}

// Batch stores all messages or none. It returns the sequence of the last one.
// ErrMoved means that an expectation did not hold and nothing was stored. After
// any other error for which refused is true nothing was stored either. After all
// other errors it is not known whether the messages are stored.
func (h *Messages) Batch(ctx context.Context, msgs ...*nats.Msg) (uint64, error) {
	id := nuid.Next()
	for i, m := range msgs {
		if err := h.checkSize(m.Subject, len(m.Data)); err != nil {
			return 0, err
		}
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[wire.HeaderBatch], m.Header[wire.HeaderBatchSeq] = []string{id}, []string{strconv.Itoa(i + 1)}
		if i < len(msgs)-1 {
			if err := h.bulk.PublishMsg(m); err != nil {
				return 0, fmt.Errorf("write %s: %w", m.Subject, Reach(err))
			}
		}
	}
	last := msgs[len(msgs)-1]
	last.Header[wire.HeaderBatchCommit] = []string{"1"}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout) // a request that is lost is never answered
	defer cancel()
	answer, err := h.bulk.RequestMsgWithContext(op, last)
	if err != nil {
		h.streams.ReopenFor(ctx, last.Subject, err) // for the next try
		return 0, fmt.Errorf("write %s: %w", last.Subject, Reach(err))
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("write %s: the server's answer: %w", last.Subject, rawjson.Plain(err))
	}
	switch {
	case ack.Error == nil:
		return ack.Seq, nil
	case ack.Error.ErrorCode == wire.CodeWrongLast || ack.Error.ErrorCode == wire.CodeWrongLastConst:
		return 0, ErrMoved
	default:
		return 0, fmt.Errorf("write %s: %w", last.Subject, ack.Error)
	}
}
