package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// read decodes the request. An unreadable request goes to the DEAD stream; a
// readable request with a wrong field gets a failed result that names the field.
// In both cases the message is settled and read returns nil.
func (w *Worker) read(ctx context.Context, d *delivery) (*schema.Request, error) {
	lane, ok := subjects.ParseRequest(d.subject)
	var req schema.Request
	why := wire.Decode(d.data, &req)
	if why == nil && ok && (lane == "" || lane == req.Trainer) {
		if err := w.CheckSize("request", len(d.data)); err != nil { // there is no room for the headers of its copy
			if err := w.fail(ctx, req.ID, schema.Faultf("request", schema.CodeTooLarge, schema.WhoUser, "%v", err)); err != nil {
				return nil, err
			}
			return nil, d.done(ctx)
		}
		req = req.WithDefaults()
		return &req, nil
	}
	id, known := req.ID, true
	if _, err := schema.ParseID(string(id)); err != nil {
		id, known = schema.PeekID(d.data)
	}
	bound := known && ok && (lane == "" || lane == id.Trainer())
	var invalid *schema.InvalidError
	if bound && errors.As(why, &invalid) {
		w.log.Warn().Err(why).Str("rollout", string(id)).Msg("an invalid request was refused")
		if err := w.fail(ctx, id, schema.Faultf("request", schema.CodeInvalid, schema.WhoUser, "%v", why)); err != nil {
			return nil, err
		}
		return nil, d.done(ctx)
	}
	if !bound {
		why = errors.Join(why, fmt.Errorf("it came on %s", d.subject))
	}
	if err := w.deadLetter(ctx, d, "unreadable", why); err != nil {
		return nil, err
	}
	crash.Here("dead.copied")
	if bound { // its trainer waits for a result
		if err := w.fail(ctx, id, schema.Faultf("request", schema.CodeUnreadable, schema.WhoUser, "%v", why)); err != nil {
			return nil, err
		}
	}
	if !bound && lane != "" {
		w.disown(lane, id, why)
	}
	if err := d.drop(schema.Clip(why.Error(), 200)); err != nil {
		return nil, err
	}
	crash.Here("dead.termed")
	return nil, nil
}

// disown tells a trainer that a request on its lane can have no result.
func (w *Worker) disown(trainer string, id schema.ID, why error) {
	h := schema.Hint{V: schema.Version, ID: schema.ID(schema.Clip(string(id), 100)), Fault: schema.Faultf("request", schema.CodeInvalid, schema.WhoUser, "id: %q is not valid on a lane of trainer %s: %v", id, trainer, why)}
	h.Fault.Message = schema.Clip(h.Fault.Message, 4000)
	data, err := schema.Encode(&h)
	if err == nil {
		err = w.BulkConn().Publish(subjects.TrainerResults(trainer), data)
	}
	if err != nil {
		w.log.Debug().Err(err).Str("trainer", trainer).Msg("a trainer was not told of a request that has no result")
	}
}

// fail commits the failed result of a rollout that never ran. Of the request it
// uses only the id, since other fields may be invalid.
func (w *Worker) fail(ctx context.Context, id schema.ID, fault *schema.Fault) error {
	m := w.about(id, askReject)
	m.req, m.fault = &schema.Request{ID: id, Trainer: id.Trainer()}, fault
	s, err := w.resolve(ctx, m)
	if err == nil && s.writes() {
		w.hint(id)
	}
	return err
}

// refuse ends the rollout of a request that no worker can run.
func (w *Worker) refuse(ctx context.Context, d *delivery, req *schema.Request, lacks error) error {
	m := w.aboutMessage(d, req, askRefuse)
	m.fault = schema.Faultf("request", schema.CodeNoWorker, schema.WhoUser, "no live worker offers what it asks: %v", lacks)
	did, err := w.resolve(ctx, m)
	if err != nil {
		return err
	}
	return w.settle(ctx, m, did)
}

// maxDead is the largest body in bytes that StreamDead keeps; a longer one is cut.
const maxDead = 256 << 10

// deadID is the message id of the copy of a message, so that it is copied once.
func deadID(subject string, seq uint64) string {
	return subject + "-" + strconv.FormatUint(seq, 10)
}

// deadLetter copies a message to the DEAD stream.
func (w *Worker) deadLetter(ctx context.Context, d *delivery, reason string, why error) error {
	crash.Here("dead.before")
	subject := subjects.Dead(reason, subjects.QueueOf(d.subject))
	msg := &nats.Msg{Subject: subject, Data: d.data[:min(len(d.data), maxDead)], Header: nats.Header{
		subjects.HeaderSubject: {d.subject}, subjects.HeaderReason: {wire.OneLine(why.Error())},
	}}
	if _, err := w.JetStream().PublishMsg(ctx, msg, jetstream.WithMsgID(deadID(subject, d.seq))); err != nil {
		return fmt.Errorf("keep an unreadable request in %s: %w", subject, err)
	}
	w.log.Warn().Err(why).Str("kept", subject).Msg("a request could not be read")
	return nil
}
