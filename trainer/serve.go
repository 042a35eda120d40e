package trainer

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/turngate/turngate/schema"
)

// Next waits for a model call to answer.
func (t *Trainer) Next(ctx context.Context) (*Pending, error) {
	for {
		t.mu.Lock()
		if at := slices.IndexFunc(t.queue, func(p *Pending) bool { return !t.holds(p.state.key.Rollout) }); at >= 0 {
			p := t.queue[at]
			t.queue = slices.Delete(t.queue, at, at+1)
			more := len(t.queue) > 0
			t.mu.Unlock()
			if more {
				wake(t.arrived)
			}
			if p.handOut() {
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

// Answerer answers a call. It may emit pieces of the answer before it returns the
// whole reply, which repeats them; an error of emit means that nobody wants the
// rest.
type Answerer func(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error)

// Whole is an Answerer that emits nothing.
func Whole(f func(ctx context.Context, c *schema.Call) (*schema.Reply, error)) Answerer {
	return func(ctx context.Context, c *schema.Call, _ func(*schema.Delta) error) (*schema.Reply, error) {
		return f(ctx, c)
	}
}

// Serve answers every call with f, side by side, until the context ends. An
// error of f that is a *schema.Fault answers with it; any other is a fault with
// status 500, which workers ask again.
func (t *Trainer) Serve(ctx context.Context, f func(ctx context.Context, c *schema.Call) (*schema.Reply, error)) error {
	return t.ServeStream(ctx, Whole(f))
}

// ServeStream is Serve for answers that are sent while they are generated.
func (t *Trainer) ServeStream(ctx context.Context, f Answerer) error {
	var open sync.WaitGroup
	defer open.Wait()
	serve := func(p *Pending) func() {
		open.Add(1)
		return func() {
			defer open.Done()
			t.answer(p, f)
		}
	}
	t.mu.Lock()
	t.serve = serve
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.serve = nil
		t.mu.Unlock()
	}()
	for { // calls that came before, or while held
		p, err := t.Next(ctx)
		if err != nil {
			return err
		}
		go serve(p)()
	}
}

// answer answers one call with f.
func (t *Trainer) answer(p *Pending, f Answerer) {
	reply, err := f(p.Context(), &p.Call, func(d *schema.Delta) error { return p.Stream().Delta(d) })
	if err == nil {
		err = p.Reply(reply)
	}
	if err == nil || errors.Is(err, ErrOver) {
		return
	}
	var fault *schema.Fault
	if !errors.As(err, &fault) {
		fault = schema.Faultf("call", schema.CodeInternal, schema.WhoTrainer, "%v", err)
		fault.Status = 500
	}
	t.cfg.Log.Warn().Err(err).Str("call", p.Call.Key).Msg("a call was answered with a fault")
	if err := p.Fault(fault); err != nil && !errors.Is(err, ErrOver) {
		t.cfg.Log.Error().Err(err).Str("call", p.Call.Key).Msg("a fault could not be sent")
	}
}
