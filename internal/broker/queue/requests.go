package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// requests reads the messages of queues, and ends the ones that no worker can run.
type requests struct {
	*base
	resolver *resolver
}

// read decodes the request. An unreadable request goes to the DEAD stream; a
// readable request with a wrong field gets a failed result that names the field.
// In both cases the message is settled and read returns nil.
func (q *requests) read(ctx context.Context, d *delivery) (*schema.Request, error) {
	lane, ok := subjects.ParseRequest(d.subject)
	var req schema.Request
	why := wire.Decode(d.data, &req)
	if why == nil && ok && (lane == "" || lane == req.Trainer) {
		if err := q.broker.CheckSize("request", len(d.data)); err != nil { // there is no room for the headers of its copy
			if err := q.fail(ctx, req.ID, schema.Faultf("request", schema.CodeTooLarge, schema.WhoUser, "%v", err)); err != nil {
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
		q.log.Warn().Err(why).Str("rollout", string(id)).Msg("an invalid request was refused")
		if err := q.fail(ctx, id, schema.Faultf("request", schema.CodeInvalid, schema.WhoUser, "%v", why)); err != nil {
			return nil, err
		}
		return nil, d.done(ctx)
	}
	if !bound {
		why = errors.Join(why, fmt.Errorf("it came on %s", d.subject))
	}
	if err := q.deadLetter(ctx, d, "unreadable", why); err != nil {
		return nil, err
	}
	crash.Here("dead.copied")
	if bound { // its trainer waits for a result
		if err := q.fail(ctx, id, schema.Faultf("request", schema.CodeUnreadable, schema.WhoUser, "%v", why)); err != nil {
			return nil, err
		}
	}
	if !bound && lane != "" {
		q.disown(lane, id, why)
	}
	if err := d.drop(schema.Clip(why.Error(), 200)); err != nil {
		return nil, err
	}
	crash.Here("dead.termed")
	return nil, nil
}

// disown tells a trainer that a request on its lane can have no result.
func (q *requests) disown(trainer string, id schema.ID, why error) {
	h := schema.Hint{V: schema.Version, ID: schema.ID(schema.Clip(string(id), 100)), Fault: schema.Faultf("request", schema.CodeInvalid, schema.WhoUser, "id: %q is not valid on a lane of trainer %s: %v", id, trainer, why)}
	h.Fault.Message = schema.Clip(h.Fault.Message, 4000)
	data, err := schema.Encode(&h)
	if err == nil {
		err = q.broker.BulkConn().Publish(subjects.TrainerResults(trainer), data)
	}
	if err != nil {
		q.log.Debug().Err(err).Str("trainer", trainer).Msg("the fault of a request without a result was not sent to its trainer")
	}
}

// fail commits the failed result of a rollout that never ran. Of the request it
// uses only the id, since other fields may be invalid.
func (q *requests) fail(ctx context.Context, id schema.ID, fault *schema.Fault) error {
	m := q.resolver.about(id, askReject)
	m.req, m.fault = &schema.Request{ID: id, Trainer: id.Trainer()}, fault
	s, err := q.resolver.resolve(ctx, m)
	if err == nil && s.writes() {
		q.hint(id)
	}
	return err
}

// refuse ends the rollout of a request that no worker can run, for the reason why.
func (q *requests) refuse(ctx context.Context, d *delivery, req *schema.Request, why string) error {
	m := q.resolver.aboutMessage(d, req, askRefuse)
	m.fault = schema.Faultf("request", schema.CodeNoWorker, schema.WhoUser, "%s", why)
	did, err := q.resolver.resolve(ctx, m)
	if err != nil {
		return err
	}
	return q.settle(ctx, m, did)
}

// maxDead is the largest body in bytes that StreamDead keeps; a longer one is cut.
const maxDead = 256 << 10

// deadID is the message id of the copy of a message, so that it is copied once.
func deadID(subject string, seq uint64) string {
	return subject + "-" + strconv.FormatUint(seq, 10)
}

// deadLetter copies a message to the DEAD stream.
func (q *requests) deadLetter(ctx context.Context, d *delivery, reason string, why error) error {
	crash.Here("dead.before")
	subject := subjects.Dead(reason, subjects.QueueOf(d.subject))
	msg := &nats.Msg{Subject: subject, Data: d.data[:min(len(d.data), maxDead)], Header: nats.Header{
		subjects.HeaderSubject: {d.subject}, subjects.HeaderReason: {wire.OneLine(why.Error())},
	}}
	if _, err := q.broker.JetStream().PublishMsg(ctx, msg, jetstream.WithMsgID(deadID(subject, d.seq))); err != nil {
		return fmt.Errorf("keep an unreadable request in %s: %w", subject, err)
	}
	q.log.Warn().Err(why).Str("kept", subject).Msg("a request could not be read")
	return nil
}

// settle settles a queue message after the last step about its rollout.
func (q *requests) settle(ctx context.Context, m *resolution, s step) error {
	switch s {
	case stepAdopt:
		if j := q.resolver.jobs.get(m.id); j != nil {
			j.adopt(m.d)
			return nil
		}
		return m.d.nak(0) // the job has ended since
	case stepLater:
		if m.lease == leaseAlive {
			return m.d.nak(q.timing.Busy)
		}
		return m.d.nak(time.Second)
	case stepEnded, writeOutcome, writeFinish:
		q.hint(m.id)
	default:
	}
	return m.d.done(ctx)
}
