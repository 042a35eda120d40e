package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker/wire"
)

// dispatcher pulls requests for the free slots of a worker. While all queues are empty
// it asks each queue for one request, keeps the first that arrives and gives the others
// back. The slots take turns: the one that has the turn pulls for all that are free.
type dispatcher struct {
	puller    *puller
	suspended *switchable    // on while this worker's lease is in doubt
	turn      chan struct{}  // of capacity 1; has a value while a slot pulls
	ready     chan *delivery // pulled for free slots
	free      atomic.Int32   // number of free slots
}

// maxPull bounds the requests of one pull.
const maxPull = 256

func newDispatcher(p *puller, suspended *switchable) *dispatcher {
	return &dispatcher{puller: p, suspended: suspended, turn: make(chan struct{}, 1), ready: make(chan *delivery, maxPull)}
}

// next waits for a request for the calling slot, which is free until next
// returns.
func (s *dispatcher) next(ctx context.Context) (*delivery, error) {
	s.free.Add(1)
	defer s.leave()
	for {
		if err := s.suspended.wait(ctx); err != nil { // no new work
			return nil, err
		}
		select {
		case d := <-s.ready:
			return d, nil
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		d, err := s.pull(ctx)
		<-s.turn
		if d != nil || err != nil {
			return d, err
		}
	}
}

// pull pulls requests for all free slots and returns that of the calling slot. If
// delivery and error are both nil, the caller tries again.
func (s *dispatcher) pull(ctx context.Context) (*delivery, error) {
	select {
	case d := <-s.ready:
		return d, nil
	default:
	}
	if !s.puller.broker.BulkConn().IsConnected() {
		return nil, wire.Pause(ctx, 250*time.Millisecond)
	}
	all, err := s.puller.poll(ctx, min(int(s.free.Load()), maxPull))
	if len(all) == 0 && err == nil {
		return s.puller.waitAny(ctx)
	}
	if len(all) == 0 {
		return nil, err
	}
	for _, d := range all[1:] {
		s.ready <- d // there is room: it was empty, and only the slot with the turn fills it
	}
	return all[0], nil
}

// leave ends the wait of a slot. Requests for slots that wait no more go back to
// the queue.
func (s *dispatcher) leave() {
	s.free.Add(-1)
	for len(s.ready) > int(s.free.Load()) {
		select {
		case d := <-s.ready:
			if err := d.nak(0); err != nil {
				s.puller.log.Debug().Err(err).Msg("a request for a slot that is gone was not given back")
			}
		default:
			return
		}
	}
}
