package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// repair ends a rollout with an unreadable record: it copies the record to the
// DEAD stream and commits a failed result. If only the state cannot be read, a
// stored result counts. broker.ErrMoved means that a record has changed since it was
// read.
func (v *resolver) repair(ctx context.Context, req *schema.Request, bad *broker.UnreadableRecord) error {
	copied := &nats.Msg{Subject: subjects.Dead("record", subjects.Records(req.ID.Trainer())), Data: bad.Data[:min(len(bad.Data), maxDead)], Header: nats.Header{
		subjects.HeaderSubject: {bad.Subject}, subjects.HeaderReason: {wire.OneLine(bad.Why.Error())},
	}}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	if _, err := v.broker.JetStream().PublishMsg(op, copied, jetstream.WithMsgID(deadID(copied.Subject, bad.Seq))); err != nil {
		return fmt.Errorf("keep an unreadable record in %s: %w", copied.Subject, err)
	}
	v.log.Error().Err(bad.Why).Str("record", bad.Subject).Str("kept", copied.Subject).Msg("a record could not be read; its rollout ends as failed")
	end := func(state broker.Record[schema.State], resultSeq uint64) error {
		r := verdict(req, state.Value.Attempt, schema.StatusFailed, schema.Faultf("worker", schema.CodeUnreadable, schema.WhoWorker, "%v", bad))
		r.Worker = v.wid
		_, err := v.writes.both(op, concluded(state.Value, &r), state.Seq, r, resultSeq)
		return err
	}
	if bad.Subject == subjects.Result(req.ID) {
		state, err := v.readState(op, req.ID)
		if err == nil {
			err = end(state, bad.Seq)
		}
		return v.repaired(req.ID, err)
	}
	state := broker.Record[schema.State]{Value: schema.State{V: schema.Version, ID: req.ID, Trainer: req.Trainer}, Seq: bad.Seq}
	stored, err := broker.ReadRecord[schema.Result](op, v.broker.Messages, subjects.Result(req.ID))
	var also *broker.UnreadableRecord
	switch {
	case errors.As(err, &also):
		err = end(state, also.Seq)
	case err != nil:
	case stored.Seq == 0:
		err = end(state, 0)
	default: // the stored result counts
		state.Value.Attempt = stored.Value.Attempt
		next := concluded(state.Value, &stored.Value)
		_, err = v.broker.Messages.Put(op, subjects.State(req.ID), &next, state.Seq)
	}
	return v.repaired(req.ID, err)
}

// repaired sends the hint of a rollout that repair has ended.
func (v *resolver) repaired(id schema.ID, err error) error {
	if err != nil {
		return fmt.Errorf("end %s, whose record cannot be read: %w", id, err)
	}
	v.hint(id)
	return nil
}

// mend repairs the record that err names. It returns any other error.
func (v *resolver) mend(ctx context.Context, m *resolution, err error) error {
	var bad *broker.UnreadableRecord
	if !errors.As(err, &bad) {
		return err
	}
	return ignoreMoved(v.repair(ctx, v.requestOf(ctx, m), bad))
}

func ignoreMoved(err error) error {
	if errors.Is(err, broker.ErrMoved) {
		return nil
	}
	return err
}
