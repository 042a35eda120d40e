package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// read decodes the request. One that cannot be read goes to the DEAD stream;
// one that is readable but wrong gets a failed result that names the field.
func (w *WorkerSide) read(ctx context.Context, d *delivery) (*schema.Request, error) {
	lane, ok := subjects.ParseRequest(d.subject)
	var req schema.Request
	why := schema.Decode(d.data, &req)
	if why == nil && ok && (lane == "" || lane == req.Trainer) {
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
	if err := w.bury(ctx, d, "unreadable", why); err != nil {
		return nil, err
	}
	crash.Here("bury.copied")
	if bound { // somebody waits for it
		if err := w.fail(ctx, id, schema.Faultf("request", schema.CodeUnreadable, schema.WhoUser, "%v", why)); err != nil {
			return nil, err
		}
	}
	if err := d.drop(schema.Clip(why.Error(), 200)); err != nil {
		return nil, err
	}
	crash.Here("bury.termed")
	return nil, nil
}

// fail gives a rollout that never ran its failed result. Only what is sure to
// be valid goes into it.
func (w *WorkerSide) fail(ctx context.Context, id schema.ID, fault *schema.Fault) error {
	for {
		state, seq, found, err := w.readState(ctx, id)
		if err != nil {
			return err
		}
		if found && (state.Status.Terminal() || state.Owned()) {
			return nil // another message of that name is good
		}
		if !found {
			state = schema.State{V: schema.Version, ID: id, Trainer: id.Trainer()}
		}
		err = w.conclude(ctx, state, seq, verdict(&schema.Request{ID: id, Trainer: id.Trainer()}, state.Attempt, schema.StatusFailed, fault))
		if !errors.Is(err, errMoved) {
			return err
		}
	}
}

// bury copies a message to the DEAD stream.
func (w *WorkerSide) bury(ctx context.Context, d *delivery, reason string, why error) error {
	crash.Here("bury.before")
	subject := subjects.Dead(reason, fmt.Sprintf("%d", d.seq))
	msg := &nats.Msg{Subject: subject, Data: d.data, Header: nats.Header{
		subjects.HeaderSubject: {d.subject}, subjects.HeaderReason: {oneLine(why.Error())},
	}}
	if _, err := w.js.PublishMsg(ctx, msg, jetstream.WithMsgID(subject)); err != nil {
		return fmt.Errorf("keep an unreadable request in %s: %w", subject, err)
	}
	w.log.Warn().Err(why).Str("kept", subject).Msg("a request could not be read")
	return nil
}

// oneLine makes text fit into a header.
func oneLine(s string) string {
	out := []rune(schema.Clip(s, 500))
	for i, r := range out {
		if r < ' ' || r == 0x7f {
			out[i] = ' '
		}
	}
	return string(out)
}

// Dead is a message that could not be read.
type Dead struct {
	Seq     uint64 // in the DEAD stream: its name for requeue and drop
	Reason  string // a word
	Why     string
	Subject string // where it came on
	Size    int
	Data    []byte
}

// DeadLetters lists the newest messages that could not be read, oldest first;
// at most limit.
func (b *Broker) DeadLetters(ctx context.Context, limit int) ([]Dead, error) {
	s, err := b.js.Stream(ctx, subjects.StreamDead)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", subjects.StreamDead, err)
	}
	info := s.CachedInfo().State
	var out []Dead
	for seq := max(info.FirstSeq, 1); seq <= info.LastSeq; {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subjects.DeadFilter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read message %d of %s: %w", seq, subjects.StreamDead, err)
		}
		out = append(out, deadOf(m))
		if len(out) > limit {
			out = out[1:]
		}
		seq = m.Sequence + 1
	}
	return out, nil
}

func deadOf(m *jetstream.RawStreamMsg) Dead {
	return Dead{
		Seq: m.Sequence, Reason: subjects.DeadReason(m.Subject), Why: m.Header.Get(subjects.HeaderReason),
		Subject: m.Header.Get(subjects.HeaderSubject), Size: len(m.Data), Data: m.Data,
	}
}

// DeadLetter reads one of them with its body.
func (b *Broker) DeadLetter(ctx context.Context, seq uint64) (Dead, error) {
	m, err := b.message(ctx, subjects.StreamDead, seq)
	if err != nil {
		return Dead{}, err
	}
	if m == nil {
		return Dead{}, fmt.Errorf("dead message %d: %w", seq, ErrNotFound)
	}
	return deadOf(m), nil
}

// Requeue puts a dead message back where it came on, and drops it here.
func (b *Broker) Requeue(ctx context.Context, seq uint64) error {
	d, err := b.DeadLetter(ctx, seq)
	if err != nil {
		return err
	}
	if _, ok := subjects.ParseRequest(d.Subject); !ok {
		return fmt.Errorf("dead message %d came on %q, which is no lane of requests", seq, d.Subject)
	}
	// Its own name keeps a repeated requeue from queueing it twice.
	if _, err := b.js.Publish(ctx, d.Subject, d.Data, jetstream.WithMsgID(fmt.Sprintf("requeue-%d", seq))); err != nil {
		return fmt.Errorf("requeue dead message %d: %w", seq, err)
	}
	return b.Drop(ctx, seq)
}

// Drop deletes a dead message.
func (b *Broker) Drop(ctx context.Context, seq uint64) error {
	s, err := b.stream(ctx, subjects.StreamDead)
	if err != nil {
		return err
	}
	err = s.DeleteMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return fmt.Errorf("dead message %d: %w", seq, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("drop dead message %d: %w", seq, err)
	}
	return nil
}
