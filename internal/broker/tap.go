package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Tap reads events from their stream, in order and without loss. It does not slow
// rollouts down. It has no consumer, which would publish in the workers' account:
// a message on an event's subject only wakes it.
type Tap struct {
	from    *Messages
	subject string
	wake    chan struct{} // of capacity 1; has a value after an event was published
	sub     *nats.Subscription
	start   Place
	at      Place // of the event before the next one
}

// Place is the position of an event.
type Place struct {
	Stream int64  // time of the stream's creation in Unix ns, which tells it from one that was made anew; 0: no worker has made it yet
	Seq    uint64 // sequence in the stream
}

// Tap opens a tap for all events of one rollout, or, if id is empty, for the
// new events of all rollouts.
func (h *Events) Tap(ctx context.Context, id schema.ID) (*Tap, error) {
	t := &Tap{from: h.messages, subject: subjects.EventsOf(id), wake: make(chan struct{}, 1)}
	var err error
	if t.start, err = t.last(ctx); err != nil {
		return nil, err
	}
	t.at.Stream = t.start.Stream
	if id == "" {
		t.at = t.start
	}
	t.sub, err = h.bulk.Subscribe(t.subject, func(*nats.Msg) {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", t.subject, err)
	}
	return t, nil
}

// Start returns the place of the newest event, of any rollout, when the tap was opened.
func (t *Tap) Start() Place { return t.start }

// last returns the place of the newest event of all rollouts.
func (t *Tap) last(ctx context.Context) (Place, error) {
	s, err := t.from.js.Stream(ctx, subjects.StreamEvents)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return Place{}, nil
	}
	if err != nil {
		return Place{}, fmt.Errorf("watch %s: %w", t.subject, err)
	}
	info := s.CachedInfo()
	return Place{info.Created.UnixNano(), info.State.LastSeq}, nil
}

// Since lets the tap begin with the first event that was stored at a time or later.
func (t *Tap) Since(ctx context.Context, at time.Time) error {
	if t.at.Stream == 0 {
		return nil
	}
	seq, err := t.from.firstSince(ctx, subjects.StreamEvents, t.subject, at)
	if err == nil && seq > 0 {
		t.at.Seq = min(t.at.Seq, seq-1)
	}
	return err
}

// After lets the tap begin behind a place of its stream. A place of another stream is
// ignored.
func (t *Tap) After(at Place) {
	if at.Stream == t.start.Stream {
		t.at.Seq = min(at.Seq, t.start.Seq)
	}
}

// Past calls handle with each event that the stream has, and returns.
func (t *Tap) Past(ctx context.Context, handle func(Place, schema.Event)) error {
	for {
		next, err := t.read(ctx, handle)
		if err != nil || next <= t.at.Seq+1 {
			return err
		}
		t.at.Seq = next - 1
	}
}

// Close ends a tap that is not run.
func (t *Tap) Close() { _ = t.sub.Unsubscribe() }

// read reads a batch of events and returns the sequence after the last.
func (t *Tap) read(ctx context.Context, handle func(Place, schema.Event)) (uint64, error) {
	if t.at.Stream == 0 {
		t.rewind(ctx)
	}
	if t.at.Stream == 0 {
		return t.at.Seq + 1, nil
	}
	return t.from.scan(ctx, subjects.StreamEvents, t.subject, t.at.Seq+1, func(m stored) {
		var e schema.Event
		if err := schema.Decode(m.data, &e); err != nil {
			t.from.log.Warn().Err(err).Str("subject", m.subject).Msg("an event cannot be read")
			return
		}
		if ctx.Err() == nil {
			handle(Place{t.at.Stream, m.seq}, e)
		}
	})
}

// Waits of a tap that has read all events: the short one after an event was
// published, since the stream stores it a moment later; then longer ones.
const (
	tapShort = 10 * time.Millisecond
	tapLong  = time.Second
)

// Run calls handle with each event until the context ends. While the server cannot
// be reached, it waits and then goes on at the same event.
func (t *Tap) Run(ctx context.Context, handle func(Place, schema.Event)) error {
	defer func() { _ = t.sub.Unsubscribe() }()
	wait, empty := tapShort, 0
	for ctx.Err() == nil {
		next, err := t.read(ctx, handle)
		if err != nil && ctx.Err() == nil {
			t.from.log.Debug().Err(err).Msg("events cannot be read at this moment")
		}
		if next > t.at.Seq+1 {
			t.at.Seq, wait, empty = next-1, tapShort, 0
			continue
		}
		if empty++; empty%16 == 0 {
			t.rewind(ctx)
		}
		select {
		case <-ctx.Done():
		case <-t.wake:
			wait = tapShort
			_ = wire.Pause(ctx, wait)
		case <-time.After(wait):
			wait = min(2*wait, tapLong)
		}
	}
	return nil
}

// rewind begins again with a stream that was made anew, since the server has lost
// its store.
func (t *Tap) rewind(ctx context.Context) {
	if last, err := t.last(ctx); err == nil && last.Stream != t.at.Stream {
		t.at = Place{Stream: last.Stream}
	}
}
