package trainer

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
)

// ErrOver is returned when a call is answered that has its answer already, was
// given up by its worker, or belongs to an attempt that is over.
var ErrOver = errors.New("the call is over")

var errCancelled = errors.New("the worker gave the call up")

// Pending is a model call that waits for its answer. Exactly one of Reply,
// Stream's Final and Fault ends it.
type Pending struct {
	Call  schema.Call
	state *state
}

// state is what a trainer keeps of a call until its rollout has a result: the
// answer under way or finished, for a worker that asks again. The call itself
// is not part of it.
type state struct {
	t   *Trainer
	key schema.Key
	ctx context.Context
	end context.CancelCauseFunc
	// read is closed when others can be based on the call, or never will.
	read chan struct{}

	mu       sync.Mutex
	asked    broker.Asked
	gen      string
	deltas   []broker.Packed
	final    *broker.Frame
	answered bool
	opened   time.Time
	said     bool // the worker knows that it is accepted

	held  heldBack // pieces that were not sent yet
	later *time.Timer
	sent  time.Time // when the last piece was
}

func (t *Trainer) newState(key schema.Key) *state {
	s := &state{t: t, key: key, read: make(chan struct{}), gen: t.instance + strconv.FormatInt(t.gens.Add(1), 36)}
	s.ctx, s.end = context.WithCancelCause(t.life)
	return s
}

// Context ends when nobody waits for the answer any more.
func (p *Pending) Context() context.Context { return p.state.ctx }

// open takes the first asking.
func (s *state) open(a broker.Asked) {
	a.Body = nil // decoded by now; not to be kept
	s.mu.Lock()
	if s.asked.Key == (schema.Key{}) { // else it was asked again meanwhile
		s.asked = a
	}
	s.opened = time.Now()
	s.mu.Unlock()
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.fresh = append(s.t.fresh, s)
}

// accept tells the worker that somebody has the call, unless it knows.
func (s *state) accept() {
	s.mu.Lock()
	said := s.said
	s.mu.Unlock()
	if !said {
		s.sign(false)
	}
}

// attach takes a repeated asking: it gets the finished answer, or joins the
// generation that is under way.
func (s *state) attach(a broker.Asked, held bool) {
	a.Body = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = a
	from := 0
	if a.ResumeGen == s.gen {
		from = min(a.Resume, len(s.deltas))
	}
	if d := s.held.take(); d != nil { // it goes out with the others, in its turn
		_, _ = s.add(d) // what is held was checked
	}
	if s.final == nil {
		s.send(broker.Frame{Kind: schema.FrameAccept, Gen: s.gen, Held: held})
		s.said = true
	}
	for i := from; i < len(s.deltas); i++ {
		s.send(broker.Frame{Kind: schema.FrameDelta, Gen: s.gen, Seq: i, Body: s.deltas[i]})
	}
	if s.final != nil {
		s.send(*s.final)
	}
}

// sign sends an accept the first time, a beat afterwards.
func (s *state) sign(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() {
		return
	}
	kind := schema.FrameBeat
	if !s.said {
		kind, s.said = schema.FrameAccept, true
	}
	s.send(broker.Frame{Kind: kind, Gen: s.gen, Held: held})
}

// wanted says whether the call still wants an answer. It needs the lock.
func (s *state) wanted() bool { return !s.answered && s.ctx.Err() == nil }

// send needs the lock. A frame that is lost is asked for again.
func (s *state) send(f broker.Frame) {
	if err := s.asked.Send(f); err != nil {
		s.t.cfg.Log.Debug().Err(err).Stringer("call", s.key).Msg("a frame was not sent")
	}
	crash.Here("trainer." + string(f.Kind))
}

// handOut says whether the call still wants an answer.
func (p *Pending) handOut() bool {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.wanted()
}

// Reply answers the call.
func (p *Pending) Reply(r *schema.Reply) error {
	r.V = schema.Version
	s := p.state
	body, err := s.t.side.EncodeFrame(s.ctx, r)
	if err != nil {
		return err
	}
	s.t.answeredBy(s.key, r.Versions) // before its next call can come
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted() {
		_ = s.flush() // what is held was checked
	}
	return s.finish(broker.Frame{Kind: schema.FrameFinal, Gen: s.gen, Seq: len(s.deltas), Body: body}, true)
}

// Fault refuses the call. With a retryable status (425, 429, 5xx) the worker
// asks again and gets a new Pending; otherwise the refusal is final.
func (p *Pending) Fault(f *schema.Fault) error {
	if f.Status == 0 {
		f.Status = 500
	}
	s := p.state
	body, err := s.t.side.EncodeFrame(s.ctx, f)
	if err != nil {
		return err
	}
	retryable := schema.RetryableStatus(f.Status)
	if retryable { // before it is sent: the worker may be back at once
		s.t.forget(s.key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finish(broker.Frame{Kind: schema.FrameFault, Gen: s.gen, Body: body}, !retryable)
}

// finish needs the lock.
func (s *state) finish(f broker.Frame, keep bool) error {
	if !s.wanted() {
		return ErrOver
	}
	s.answered, s.held = true, heldBack{}
	if s.later != nil {
		s.later.Stop()
	}
	if keep {
		s.final = &f
	}
	s.send(f)
	s.end(nil)
	return nil
}
