package gate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
)

// exchange is one call and its answer. A request of the agent attaches to it;
// if that request breaks off, an equal one may attach later and gets the same
// answer, so a retry never makes a second generation.
type exchange struct {
	s        *Session
	number   int
	of       origin
	call     schema.Call
	encoding Encoding
	ctx      context.Context // ends when nobody wants the answer any more
	cancel   context.CancelCauseFunc

	mu        sync.Mutex
	client    *client // who is told, nil before there was one
	deltas    []*schema.Delta
	gen       string
	released  bool // a byte of gen has gone to the agent before the answer was whole
	finished  bool
	committed bool // the answer reached the agent
	reply     schema.Reply
	err       error
	idle      bool

	// Guarded by the session's lock.
	attached  bool
	detached  chan struct{} // closed when the request that is attached is over; nil: nobody waits for that
	forget    *time.Timer   // runs while it is an orphan
	forgotten bool
}

var (
	errAbandoned  = errors.New("the agent gave the call up")
	errRegenerate = errors.New("a stream that was begun cannot go on with another generation")
)

// origin is what makes two requests equal.
type origin struct {
	path, query string
	size        int // of the body, in bytes
	print       uint64
}

// enter finds the exchange for a request, or makes one. An equal exchange that
// lost its client is taken over; while one is still open the request waits for
// it for a moment, and then is a call of its own: two equal calls at the same
// time are two calls. Whoever gets a fresh one must run it.
func (s *Session) enter(ctx context.Context, of origin, isRetry bool, req Request, reserved *int64) (x *exchange, fresh bool, err error) {
	// From now on its call counts, and the reservation for its body does not.
	counts := func() { s.reading, *reserved = s.reading-*reserved, 0 }
	patience := s.cfg.Timing.Equal
	if isRetry {
		patience = s.cfg.Timing.Retry
	}
	var timer *time.Timer
	for waited := false; ; {
		s.mu.Lock()
		var open *exchange
		for _, e := range s.alive {
			if e.of != of {
				continue
			}
			if !e.attached {
				e.attach()
				counts()
				s.mu.Unlock()
				return e, false, nil
			}
			open = e
		}
		if open == nil || waited {
			x, err = s.begin(of, req)
			counts()
			s.mu.Unlock()
			return x, true, err
		}
		if open.detached == nil {
			open.detached = make(chan struct{})
		}
		over := open.detached
		s.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(patience)
			defer timer.Stop()
		}
		select {
		case <-over:
		case <-timer.C:
			waited = true
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		case <-s.life.Done():
			return nil, false, context.Cause(s.life)
		}
	}
}

// begin numbers a new call. The session's lock is held.
func (s *Session) begin(of origin, req Request) (*exchange, error) {
	if s.life.Err() != nil {
		return nil, context.Cause(s.life)
	}
	if s.count >= s.cfg.Options.MaxCalls {
		return nil, schema.Faultf("agent", schema.CodeCallCap, schema.WhoAgent, "it asked for more than %d model calls", s.cfg.Options.MaxCalls)
	}
	if limit := s.cfg.Options.MaxTokens; limit > 0 {
		var used int64
		for _, st := range s.stats {
			used += st.CompletionTokens
		}
		if used >= limit {
			return nil, schema.Faultf("agent", schema.CodeTokenCap, schema.WhoAgent, "it used %d completion tokens, its cap is %d", used, limit)
		}
	}
	s.count++
	call := req.Call
	call.V = schema.Version
	call.Key = schema.Key{Rollout: s.cfg.Rollout, Attempt: s.cfg.Attempt, Call: s.count}.String()
	var kept bool
	if call.Shares, call.Digest, kept = s.recent.place(s.count, &call, req.fresh, req.Kept, s.cfg.Memory); !kept {
		req.from.forget()
	}
	x := &exchange{s: s, number: s.count, of: of, call: call, encoding: req.Encoding}
	x.attach()
	s.alive = append(s.alive, x)
	s.clock.change(1, 0)
	x.ctx, x.cancel = context.WithCancelCause(s.life)
	s.calls.Add(1)
	return x, nil
}

// attach gives the exchange a client. The session's lock is held.
func (x *exchange) attach() {
	x.attached, x.detached = true, nil
	if x.forget != nil {
		x.forget.Stop()
		x.forget = nil
	}
}

// detach ends a client's hold. What was not delivered whole is kept for a
// while for the client to come back; a stream that was begun is not, since it
// cannot be begun again.
func (x *exchange) detach(delivered bool) {
	s := x.s
	x.mu.Lock()
	broken := x.released && !delivered
	x.mu.Unlock()
	s.mu.Lock()
	if !x.attached || x.forgotten {
		s.mu.Unlock()
		return
	}
	x.attached = false
	if x.detached != nil {
		close(x.detached)
	}
	if delivered || broken || s.life.Err() != nil {
		x.drop()
		s.mu.Unlock()
		x.cancel(errAbandoned)
		return
	}
	x.forget = time.AfterFunc(s.cfg.Timing.Orphan, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !x.attached {
			x.drop()
			x.cancel(errAbandoned)
		}
	})
	s.mu.Unlock()
}

// drop forgets the exchange. The session's lock is held.
func (x *exchange) drop() {
	if x.forgotten {
		return
	}
	x.forgotten = true
	x.s.alive = slices.DeleteFunc(x.s.alive, func(e *exchange) bool { return e == x })
}

// run asks the model, when one of the session's slots is free.
func (x *exchange) run() {
	s := x.s
	defer s.calls.Done()
	defer x.cancel(nil)
	select {
	case s.slots <- struct{}{}:
	case <-x.ctx.Done():
		x.finish(schema.Reply{}, context.Cause(x.ctx), 0)
		return
	}
	start := time.Now()
	s.cfg.Observer.CallBegan(x.number, &x.call)
	reply, err := s.cfg.Model.Complete(x.ctx, x.call, x.frame)
	<-s.slots
	x.finish(reply, err, time.Since(start))
}

// frame hears of the call while it waits.
func (x *exchange) frame(f schema.Frame) error {
	x.setIdle(f.Kind == schema.FrameAbsent || f.Held)
	x.mu.Lock()
	if f.Gen != "" && f.Gen != x.gen {
		if x.released && !crash.Broken("I3") {
			x.mu.Unlock()
			return errRegenerate
		}
		x.gen, x.deltas = f.Gen, nil
	}
	var tell *client
	if f.Kind == schema.FrameDelta {
		x.s.cfg.Observer.CallDelta(x.number, f.Delta)
		if x.s.cfg.Options.Stream == schema.StreamPass {
			x.deltas = append(x.deltas, f.Delta)
			tell = x.client
		}
	}
	x.mu.Unlock()
	if tell != nil {
		tell.push(f.More)
	}
	return nil
}

func (x *exchange) setIdle(idle bool) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if idle != x.idle {
		x.idle = idle
		if idle {
			x.s.clock.change(0, 1)
		} else {
			x.s.clock.change(0, -1)
		}
	}
}

func (x *exchange) finish(reply schema.Reply, err error, took time.Duration) {
	s := x.s
	x.setIdle(false)
	end := CallEnd{Took: took}
	if err == nil {
		end.Reply = &x.reply
	} else {
		end.Fault = faultOf(err)
	}
	s.mu.Lock()
	s.clock.change(-1, 0)
	st := s.stats[x.call.Tag]
	st.Count++
	if err == nil {
		st.PromptTokens += reply.Usage.PromptTokens
		st.CompletionTokens += reply.Usage.CompletionTokens
		for _, e := range reply.Edits {
			s.edits[e] = true
		}
		if reply.Usage.PromptTokens > 0 {
			s.bytesPerToken = float64(x.of.size) / float64(reply.Usage.PromptTokens)
		}
	}
	s.stats[x.call.Tag] = st
	s.mu.Unlock()
	if end.Fault != nil && end.Fault.Code == schema.CodeNoTrainer {
		s.end(end.Fault) // before the agent hears of it
	}
	x.mu.Lock()
	end.Gen = x.gen
	x.finished, x.reply, x.err = true, reply, err
	tell := x.client
	x.mu.Unlock()
	s.cfg.Observer.CallEnded(x.number, end)
	if tell != nil {
		tell.push(false)
	}
}

func faultOf(err error) *schema.Fault {
	var f *schema.Fault
	if !errors.As(err, &f) {
		f = schema.Faultf("call", schema.CodeInternal, schema.WhoWorker, "%v", err)
	}
	return f
}

// hurry bounds how long the agent may take to read the rest.
func (x *exchange) hurry() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.client != nil {
		x.client.hurry()
	}
}

// commit notes that the generation reached the agent.
func (x *exchange) commit() {
	x.mu.Lock()
	ok, gen, digest := x.finished && x.err == nil && !x.committed, x.gen, x.reply.Digest
	x.committed = x.committed || ok
	x.mu.Unlock()
	if !ok {
		return
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.committed = append(x.s.committed, schema.Committed{Call: x.number, Gen: gen, Digest: digest, Tag: x.call.Tag})
}
