package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// commitMessages returns the messages of a result and the terminal state. The
// server stores each only if the state record still has the sequence stateSeq.
func commitMessages(s schema.State, stateSeq uint64, r schema.Result) (result, state *nats.Msg, err error) {
	if result, err = broker.Expecting(subjects.Result(r.ID), &r, stateSeq); err != nil {
		return nil, nil, err
	}
	result.Header[wire.HeaderExpectOf] = []string{subjects.State(r.ID)}
	result.Header[wire.HeaderMsgID] = []string{fmt.Sprintf("%s.%d.%d", r.ID, r.Attempt, stateSeq)} // the server drops a repeated write
	if state, err = broker.Expecting(subjects.State(r.ID), &s, stateSeq); err != nil {
		return nil, nil, err
	}
	return result, state, nil
}

// writeBoth writes a result and a terminal state in one atomic batch, if the
// records have the sequences resultSeq and stateSeq. broker.ErrMoved means that they
// are not stored, or were stored by an earlier try.
func (w *Worker) writeBoth(ctx context.Context, s schema.State, stateSeq uint64, r schema.Result, resultSeq uint64) (uint64, error) {
	result, err := broker.Expecting(subjects.Result(r.ID), &r, resultSeq)
	if err != nil {
		return 0, err
	}
	state, err := broker.Expecting(subjects.State(r.ID), &s, stateSeq)
	if err != nil {
		return 0, err
	}
	return w.Batch(ctx, result, state)
}

// concluded returns the terminal state of a rollout with this result.
func concluded(s schema.State, r *schema.Result) schema.State {
	s.Status, s.Fault, s.Ack = r.Status, r.Fault, ""
	return s
}

func nowMS() int64 { return time.Now().UnixMilli() }
