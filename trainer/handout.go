package trainer

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

// handout has the model calls that wait to be handed out, to Serve or to callers of Next.
type handout struct {
	*base
	selector selector
	arrived  chan struct{} // capacity 1: the queue has calls
	asked    atomic.Bool   // Serve or a caller of Next has asked for calls

	mu      sync.Mutex
	queue   []*Pending
	serving *serving   // takes calls without the queue; nil: Serve does not run
	hold    *Selection // the rollouts to hold; nil: none
	since   time.Time  // when calls began to be held; zero: none are
}

// add hands a new call to Serve if it has room, and otherwise queues it.
func (h *handout) add(p *Pending) {
	id := p.state.key.Rollout
	if h.holds(id) {
		p.state.sendBeat(true)
	}
	h.mu.Lock()
	if s := h.serving; s != nil && !h.holding(id) && s.admit(p) {
		h.mu.Unlock()
		s.answer(p)
		return
	}
	h.queue = append(h.queue, p)
	h.mu.Unlock()
	wake(h.arrived)
}

// next returns the next model call that waits for an answer and is not held.
func (h *handout) next(ctx context.Context) (*Pending, error) {
	h.asked.Store(true)
	for {
		h.mu.Lock()
		if at := slices.IndexFunc(h.queue, func(p *Pending) bool { return !h.holding(p.state.key.Rollout) }); at >= 0 {
			p := h.queue[at]
			h.queue = slices.Delete(h.queue, at, at+1)
			more := len(h.queue) > 0
			p.state.out.Store(true) // an Abort that follows ends it, too
			h.mu.Unlock()
			if more {
				wake(h.arrived)
			}
			if p.wanted() {
				return p, nil
			}
			continue
		}
		h.mu.Unlock()
		select {
		case <-h.arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-h.life.Done():
			return nil, context.Cause(h.life)
		}
	}
}

// serve answers all calls with f until the context ends.
func (h *handout) serve(ctx context.Context, f Answerer) error {
	h.asked.Store(true)
	var open sync.WaitGroup
	defer open.Wait()
	s := &serving{log: h.cfg.Log, f: f, open: &open}
	if h.cfg.Parallel > 0 {
		s.slots = make(chan struct{}, h.cfg.Parallel)
	}
	h.mu.Lock()
	h.serving = s
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.serving = nil
		h.mu.Unlock()
	}()
	for { // calls that came earlier, were held, or wait for a slot
		if s.slots != nil {
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-h.life.Done():
				return context.Cause(h.life)
			}
		}
		p, err := h.next(ctx)
		if err != nil {
			return err
		}
		open.Add(1)
		go s.answer(p)
	}
}

// setHold changes the rollouts to hold, and sends a beat for each waiting call.
func (h *handout) setHold(s *Selection) {
	h.mu.Lock()
	switch {
	case s == nil:
		h.since = time.Time{}
	case h.hold == nil:
		h.since = time.Now()
	}
	h.hold = s
	waiting := slices.Clone(h.queue)
	held := make([]bool, len(waiting))
	for i, p := range waiting {
		held[i] = h.holding(p.state.key.Rollout)
	}
	h.mu.Unlock()
	for i, p := range waiting { // at once, because it stops their agents' clocks
		p.state.sendBeat(held[i])
	}
	wake(h.arrived)
}

// holding reports whether a rollout's calls wait. The caller holds the lock.
func (h *handout) holding(id schema.ID) bool { return h.hold != nil && h.selector.selects(h.hold, id) }

// holds is holding for a caller without the lock.
func (h *handout) holds(id schema.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holding(id)
}

// selection returns the rollouts to hold; nil: none.
func (h *handout) selection() *Selection {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold
}

// held returns which calls of the queue are held.
func (h *handout) held() map[*state]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := make(map[*state]bool, len(h.queue))
	for _, p := range h.queue {
		held[p.state] = h.holding(p.state.key.Rollout)
	}
	return held
}

// heldSince returns when calls began to be held; zero: none are.
func (h *handout) heldSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since
}

// close drops the queue.
func (h *handout) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = nil
}

// serving is a running Serve.
type serving struct {
	log   zerolog.Logger
	f     Answerer
	open  *sync.WaitGroup
	lines quiet.Lines   // of faults
	slots chan struct{} // has a value for each call that is answered; nil: no limit
}

// admit reports whether a call that has just arrived is answered at once; answer
// must follow. The caller holds handout's lock.
func (s *serving) admit(p *Pending) bool {
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
		default:
			return false
		}
	}
	s.open.Add(1)
	p.state.out.Store(true)
	return true
}

// answer answers one call.
func (s *serving) answer(p *Pending) {
	defer s.open.Done()
	if s.slots != nil {
		defer func() { <-s.slots }()
	}
	reply, err := s.f(p.Context(), &p.Call)
	if err == nil {
		err = p.Reply(reply)
	}
	if err == nil || errors.Is(err, ErrOver) || !p.wanted() {
		return
	}
	var fault *schema.Fault
	var invalid *schema.InvalidError
	switch {
	case errors.As(err, &fault):
	case errors.As(err, &invalid): // the worker counts such answers and ends the rollout after three
		fault = schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "%v", err)
		fault.Status = http.StatusBadGateway
	default:
		fault = schema.Faultf("call", schema.CodeInternal, schema.WhoTrainer, "%v", err)
		fault.Status = http.StatusInternalServerError
	}
	if skipped, speak := s.lines.Speak(err.Error(), time.Now()); speak {
		s.log.Warn().Err(err).Str("call", p.Call.Key).Int("repeated", skipped).Msg("a call was answered with a fault")
	}
	err = p.refuse(fault, "the fault of the answer")
	if err != nil && !errors.Is(err, ErrOver) {
		s.log.Error().Err(err).Str("call", p.Call.Key).Msg("a fault could not be sent")
	}
}
