package recorded

import (
	"context"
	"crypto/rand"
	"strconv"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// Listener gets the events of a rollout from one goroutine, and the pieces of answers
// from the same or another one.
type Listener struct {
	// After is the number of an event of Origin behind which Listen begins, if the origin
	// is still that one; 0: it begins with the first event.
	Origin string
	After  uint64
	// Begin is called before the first event, and again if the system lost its events and
	// began anew. origin tells these series of events apart; last is the number of the
	// newest event of all rollouts.
	Begin func(origin string, last uint64)
	// Event gets an event with its number, which grows within the origin.
	Event func(n uint64, e *schema.Event)
	// Piece gets a piece of the answer to a call, as the agent does. Pieces are not stored:
	// those before Begin are missing.
	Piece func(attempt, call int, d *schema.Delta)
}

// Listen tells of the events of a rollout, from the first one on, until the context ends.
// While the server cannot be reached, it waits, and then goes on at the same event. It
// needs the rights of an operator.
func (s *System) Listen(ctx context.Context, id schema.ID, to Listener) error {
	stop, err := s.b.Events.Pieces(id, to.Piece)
	if err != nil {
		return err
	}
	defer stop()
	tap, err := s.b.Events.Tap(ctx, id)
	if err != nil {
		return err
	}
	stream := tap.Start()
	origin := func() string { return strconv.FormatInt(stream.Stream, 36) }
	if to.After > 0 && to.Origin == origin() {
		tap.After(broker.Place{Stream: stream.Stream, Seq: to.After})
	}
	begin := func() { to.Begin(origin(), stream.Seq) }
	begin()
	return tap.Run(ctx, func(at broker.Place, e schema.Event) {
		if at.Stream != stream.Stream {
			stream = broker.Place{Stream: at.Stream}
			begin()
		}
		if e.Rollout == id {
			to.Event(at.Seq, &e)
		}
	})
}

// ListenAs tells of a rollout what the credential of its trainer can hear, from now on until
// the context ends: phases, waits, and the model calls that processes of the trainer answer,
// with their answers. The events are numbered from 1; some may be lost.
func (s *System) ListenAs(ctx context.Context, id schema.ID, to Listener) error {
	server, err := modelcall.NewServer(s.b, id.Trainer())
	if err != nil {
		return err
	}
	var n uint64
	return server.Overhear(ctx, id, func() { to.Begin(rand.Text(), 0) }, func(e *schema.Event) {
		n++
		to.Event(n, e)
	}, to.Piece)
}
