package recorded

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync"
	"time"

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
	// Event gets an event with its number, which grows within the origin and is above 0.
	Event func(n uint64, e *schema.Event)
	// Piece gets a piece of the answer to a call, as the agent does. Pieces are not stored:
	// those before Begin are missing. Nil: they are not heard.
	Piece func(attempt, call int, d *schema.Delta)
}

// Listen tells of the events of a rollout, from the first one on, until the context ends.
// While the server cannot be reached, it waits, and then goes on at the same event. It
// needs the rights of an operator.
func (s *System) Listen(ctx context.Context, id schema.ID, to Listener) error {
	if to.Piece != nil {
		stop, err := s.b.Events.Pieces(id, to.Piece)
		if err != nil {
			return err
		}
		defer stop()
	}
	return s.tap(ctx, id, to, (*broker.Tap).Run)
}

// tap reads the events of a rollout.
func (s *System) tap(ctx context.Context, id schema.ID, to Listener, read func(*broker.Tap, context.Context, func(broker.Place, schema.Event)) error) error {
	tap, err := s.b.Events.Tap(ctx, id)
	if err != nil {
		return err
	}
	defer tap.Close()
	stream := tap.Start()
	origin := func() string { return strconv.FormatInt(stream.Stream, 36) }
	if to.After > 0 && to.Origin == origin() {
		tap.After(broker.Place{Stream: stream.Stream, Seq: to.After})
	}
	begin := func() { to.Begin(origin(), stream.Seq) }
	begin()
	return read(tap, ctx, func(at broker.Place, e schema.Event) {
		if at.Stream != stream.Stream {
			stream = broker.Place{Stream: at.Stream}
			begin()
		}
		if e.Rollout == id {
			to.Event(at.Seq, &e)
		}
	})
}

// Watch is Listen until the rollout has ended: the last event has the result. If there is
// no such event, as of a rollout that was cancelled or that no worker could run, Watch
// makes one, with the number 0. It returns nil if the context ends before.
func (s *System) Watch(ctx context.Context, id schema.ID, to Listener) error {
	live, stop := context.WithCancel(ctx)
	defer stop()
	begin, event, ended := to.Begin, to.Event, false
	to.Begin = func(origin string, last uint64) {
		if origin != to.Origin {
			to.Origin, to.After = origin, 0
		}
		begin(origin, last)
	}
	to.Event = func(n uint64, e *schema.Event) {
		to.After = n
		event(n, e)
		if e.Type == schema.EventResult && e.Result != nil {
			ended = true
			stop()
		}
	}
	result, err := s.b.Records.Result(ctx, id)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		var looking sync.WaitGroup
		looking.Go(func() {
			defer stop()
			result = s.awaitResult(live, id)
		})
		err = s.Listen(live, id, to)
		stop()
		looking.Wait()
		if err != nil || ended || ctx.Err() != nil {
			return err
		}
	case err != nil:
		return err
	}
	if err := s.tap(ctx, id, to, (*broker.Tap).Past); err != nil || ended || ctx.Err() != nil {
		return err
	}
	event(0, &schema.Event{V: schema.Version, Type: schema.EventResult, Rollout: id, Attempt: result.Attempt, At: time.Now().UnixMilli(), Result: &result})
	return nil
}

// lookForResult is the interval at which Watch looks for the result.
const lookForResult = 2 * time.Second

// awaitResult returns the result of a rollout one interval after it was found, so that its
// event can come first. It returns an empty one when the context ends.
func (s *System) awaitResult(ctx context.Context, id schema.ID) (found schema.Result) {
	tick := time.NewTicker(lookForResult)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return found
		case <-tick.C:
		}
		if found.ID != "" {
			return found
		}
		if r, err := s.b.Records.Result(ctx, id); err == nil {
			found = r
		}
	}
}

// ListenAs reports the events of a rollout that its trainer's credential can hear, from now on
// until the context ends: phases, waits, and the model calls that processes of the trainer
// answer, with their answers. The events are numbered from 1; some may be lost.
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
