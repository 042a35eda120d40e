package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/schema"
)

// Headers of an atomic batch (NATS ADR-50) and of a compare-and-set.
const (
	headerBatch       = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
	headerExpect      = "Nats-Expected-Last-Subject-Sequence"
	headerExpectOf    = "Nats-Expected-Last-Subject-Sequence-Subject" // of another subject than the message's own
	headerMsgID       = "Nats-Msg-Id"
)

// MaxBatch is how many messages the server takes in one atomic batch.
const MaxBatch = 1000

// Answers of the server that decide what follows.
const (
	codeWrongLast      jetstream.ErrorCode = 10071
	codeWrongLastConst jetstream.ErrorCode = 10164
	codeStoreFailed    jetstream.ErrorCode = 10077 // a full stream refuses a message
	codeResources      jetstream.ErrorCode = 10023 // the server's disk or memory is full
	codeStorage        jetstream.ErrorCode = 10047 // no room for a stream of that size
	codePeers          jetstream.ErrorCode = 10005 // no servers with that room
	codeDuplicate      jetstream.ErrorCode = 10201 // a batch holds a message that is there already
	codeBatchesOpen    jetstream.ErrorCode = 10210 // too many batches at once
	codeBatchPartial   jetstream.ErrorCode = 10176 // a part of the batch was lost on the way
	codeInProcess      jetstream.ErrorCode = 10158 // the same message is being stored, for example while a quorum is missing
)

// expecting makes a message that is stored only if seq is the last sequence of
// its subject (0: none yet).
func expecting(subject string, m schema.Message, seq uint64) (*nats.Msg, error) {
	data, err := schema.Encode(m)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: subject, Data: data, Header: nats.Header{headerExpect: {strconv.FormatUint(seq, 10)}}}, nil
}

// batch stores all messages or none. It returns the sequence of the last one.
// errMoved: an expectation did not hold and nothing was stored. Other errors
// that refused reports are the server's definite no; after any other error it
// is not known whether the messages are stored.
func (b *Broker) batch(ctx context.Context, msgs ...*nats.Msg) (uint64, error) {
	id := nuid.Next()
	for i, m := range msgs {
		if err := checkSize(b.bulk, m.Subject, len(m.Data)); err != nil {
			return 0, err
		}
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[headerBatch], m.Header[headerBatchSeq] = []string{id}, []string{strconv.Itoa(i + 1)}
		if i < len(msgs)-1 {
			if err := b.bulk.PublishMsg(m); err != nil {
				return 0, fmt.Errorf("write %s: %w", m.Subject, reach(err))
			}
		}
	}
	last := msgs[len(msgs)-1]
	last.Header[headerBatchCommit] = []string{"1"}
	op, cancel := context.WithTimeout(ctx, opTimeout) // a request that is lost is never answered
	defer cancel()
	answer, err := b.bulk.RequestMsgWithContext(op, last)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", last.Subject, reach(err))
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("write %s: the server's answer: %w", last.Subject, err)
	}
	switch {
	case ack.Error == nil:
		return ack.Seq, nil
	case ack.Error.ErrorCode == codeWrongLast || ack.Error.ErrorCode == codeWrongLastConst:
		return 0, errMoved
	default:
		return 0, fmt.Errorf("write %s: %w", last.Subject, ack.Error)
	}
}

// refused reports whether the server said no, so that nothing was stored.
func refused(err error) bool {
	var api *jetstream.APIError
	var large *TooLargeError
	var invalid *schema.InvalidError
	return errors.Is(err, errMoved) || errors.As(err, &api) || errors.As(err, &large) || errors.As(err, &invalid)
}

// passing reports whether a refusal is of the moment: the same again may be
// taken.
func passing(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case codeBatchesOpen, codeBatchPartial, codeInProcess, codeStoreFailed, codeResources:
		return true
	default:
		return api.Code >= 500
	}
}
