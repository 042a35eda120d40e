package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/subjects"
)

// Dead is a message that could not be read.
type Dead struct {
	Seq     uint64 // in the DEAD stream; the argument of Requeue and Drop
	Reason  string // one word, such as "unreadable"
	Why     string // a sentence
	Subject string // subject of the original message
	Size    int
	Data    []byte
}

// DeadLetters reads, requeues and drops dead messages.
type DeadLetters struct {
	*link
	streams  *Streams
	messages *Messages
	trainers *Trainers
}

// List lists the newest dead messages, at most limit, oldest first, without their bodies.
func (h *DeadLetters) List(ctx context.Context, limit int) ([]Dead, error) {
	s, err := h.js.Stream(ctx, subjects.StreamDead)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // the first worker makes it
		return nil, nil
	}
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
		d := deadOf(m)
		d.Data = nil
		out = append(out, d)
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

// Get reads one dead message. Errors wrap ErrNotFound if it does not
// exist.
func (h *DeadLetters) Get(ctx context.Context, seq uint64) (Dead, error) {
	m, err := h.messages.At(ctx, subjects.StreamDead, seq)
	if err != nil {
		return Dead{}, err
	}
	if m == nil {
		return Dead{}, fmt.Errorf("dead message %d: %w", seq, ErrNotFound)
	}
	return deadOf(m), nil
}

// Requeue publishes a dead message on its original subject, which must be a lane
// of requests, and drops it from the DEAD stream.
func (h *DeadLetters) Requeue(ctx context.Context, seq uint64) error {
	d, err := h.Get(ctx, seq)
	if err != nil {
		return err
	}
	if _, ok := subjects.ParseRequest(d.Subject); !ok {
		return fmt.Errorf("dead message %d came on %q, which is no lane of requests", seq, d.Subject)
	}
	// The message id keeps a repeated requeue from queueing it twice.
	again := &nats.Msg{Subject: d.Subject, Data: d.Data, Header: nats.Header{wire.HeaderMsgID: {fmt.Sprintf("requeue-%d", seq)}}}
	_, err = h.messages.PutMsg(ctx, again)
	if tid, ok := subjects.TrainerOf(d.Subject); ok && IsMissing(err) {
		if _, err = h.trainers.Open(ctx, tid); err == nil {
			_, err = h.messages.PutMsg(ctx, again)
		}
	}
	if err != nil {
		return fmt.Errorf("requeue dead message %d: %w", seq, err)
	}
	return h.Drop(ctx, seq)
}

// Drop deletes a dead message. Errors wrap ErrNotFound if it does not exist.
func (h *DeadLetters) Drop(ctx context.Context, seq uint64) error {
	s, err := h.streams.Open(ctx, subjects.StreamDead)
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
