package trainer

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

// Next returns the next model call that waits for an answer and is not held.
func (t *Trainer) Next(ctx context.Context) (*Pending, error) {
	for {
		t.mu.Lock()
		if at := slices.IndexFunc(t.queue, func(p *Pending) bool { return !t.holds(p.state.key.Rollout) }); at >= 0 {
			p := t.queue[at]
			t.queue = slices.Delete(t.queue, at, at+1)
			more := len(t.queue) > 0
			p.state.out.Store(true) // an Abort that follows ends it, too
			t.mu.Unlock()
			if more {
				wake(t.arrived)
			}
			if p.wanted() {
				return p, nil
			}
			continue
		}
		t.mu.Unlock()
		select {
		case <-t.arrived:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-t.life.Done():
			return nil, context.Cause(t.life)
		}
	}
}

// Serve answers all calls with f until the context ends, Config.Parallel of them
// at once.
func (t *Trainer) Serve(ctx context.Context, f Answerer) error {
	var open sync.WaitGroup
	defer open.Wait()
	s := &serving{t: t, f: f, open: &open}
	if t.cfg.Parallel > 0 {
		s.slots = make(chan struct{}, t.cfg.Parallel)
	}
	t.mu.Lock()
	t.serving = s
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.serving = nil
		t.mu.Unlock()
	}()
	for { // calls that came earlier, were held, or wait for a slot
		if s.slots != nil {
			select {
			case s.slots <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-t.life.Done():
				return context.Cause(t.life)
			}
		}
		p, err := t.Next(ctx)
		if err != nil {
			return err
		}
		open.Add(1)
		go s.answer(p)
	}
}

// serving is a running Serve.
type serving struct {
	t     *Trainer
	f     Answerer
	open  *sync.WaitGroup
	lines quiet.Lines   // of faults
	slots chan struct{} // has a value for each call that is answered; nil: no limit
}

// admit reports whether a call that has just arrived is answered at once; answer
// must follow. The caller holds the trainer's lock.
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
	log := s.t.cfg.Log
	if skipped, speak := s.lines.Speak(err.Error(), time.Now()); speak {
		log.Warn().Err(err).Str("call", p.Call.Key).Int("repeated", skipped).Msg("a call was answered with a fault")
	}
	if err := p.Fault(fault); err != nil && !errors.Is(err, ErrOver) {
		log.Error().Err(err).Str("call", p.Call.Key).Msg("a fault could not be sent")
	}
}
