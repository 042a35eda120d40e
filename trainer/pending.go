package trainer

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
)

// ErrOver is returned for a reply to a call that has its answer already, that
// its worker gave up, or that belongs to an ended attempt.
var ErrOver = errors.New("the call is over")

var errCancelled = errors.New("the worker gave the call up")

// Pending is a model call that waits for its answer. Exactly one of Reply,
// Stream's Final and Fault ends it.
type Pending struct {
	Call  Call
	state *state
}

// Context ends when the answer is no longer wanted.
func (p *Pending) Context() context.Context { return p.state.ctx }

// wanted reports whether the call still needs an answer.
func (p *Pending) wanted() bool {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.wanted()
}

// Reply answers the call. A *schema.InvalidError names the wrong field of the
// reply: nothing was sent, and the call still waits. ErrOver means that the
// call needs no answer.
func (p *Pending) Reply(r *schema.Reply) error {
	r.V = schema.Version
	if err := schema.CheckAnswer(r.Message); err != nil {
		return err
	}
	s := p.state
	body, err := s.rollouts.server.EncodeFrame(s.ctx, r)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() {
		return ErrOver
	}
	s.rollouts.change(s.key, func(of *rollout) { of.gave(s, r) }) // before the rollout's next call can arrive
	_ = s.flush()                                                 // buffered pieces are valid
	return s.finish(modelcall.Frame{Kind: schema.FrameFinal, Gen: s.gen, Seq: len(s.deltas), Body: body}, true)
}

// Fault refuses the call. If the status is retryable (425, 429, 5xx), the
// worker asks again and gets a new Pending; otherwise the refusal is final.
func (p *Pending) Fault(f *schema.Fault) error {
	if f.Status == 0 {
		f.Status = 500
	}
	return p.state.refuse(f)
}

// refuse is Fault. A fault that cannot be sent is replaced by one that names the field, and
// of says whose fault it is.
func (p *Pending) refuse(f *schema.Fault, of string) error {
	err := p.Fault(f)
	var invalid *schema.InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	f = schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "%s: %v", of, err)
	f.Status = http.StatusBadGateway
	return p.Fault(f)
}

// state is kept for a call until its rollout has a result. It has the answer,
// finished or in progress, for a worker that asks again, but not the call
// itself.
type state struct {
	rollouts *rollouts
	key      schema.Key
	ctx      context.Context
	end      context.CancelCauseFunc
	// read is closed when the call is usable as a base, or never will be.
	read chan struct{}

	out atomic.Bool // the call was handed out

	mu       sync.Mutex
	incoming modelcall.IncomingCall
	gen      string
	deltas   []modelcall.Packed
	final    *modelcall.Frame
	answered bool
	received bool // the worker has the answer, which is dropped here
	opened   time.Time
	accepted bool // the worker got an accept

	buffered deltaBuffer // pieces that are not sent yet
	later    *time.Timer
	sent     time.Time // time of the last piece
}

// open stores the worker's first request.
func (s *state) open(a modelcall.IncomingCall) {
	a.Body = nil // already decoded, so free it
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.incoming.Key == (schema.Key{}) { // otherwise a newer request has come
		s.incoming = a
	}
	s.opened = time.Now()
}

// accept sends an accept, unless the worker got one.
func (s *state) accept() {
	s.mu.Lock()
	accepted := s.accepted
	s.mu.Unlock()
	if !accepted {
		s.sendBeat(false)
	}
}

// attach handles a repeated request of the worker: it sends the finished
// answer, or continues the generation in progress.
func (s *state) attach(a modelcall.IncomingCall, held bool) {
	a.Body = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.received || s.answered && s.final == nil {
		return // a request that was late: the worker has the answer, or asks anew
	}
	s.incoming = a
	from := 0
	if a.ResumeGen == s.gen {
		from = min(a.Resume, len(s.deltas))
	}
	if d := s.buffered.drain(); d != nil { // sent in its turn below
		_, _ = s.add(d) // buffered pieces are valid
	}
	if s.final == nil {
		s.send(modelcall.Frame{Kind: schema.FrameAccept, Gen: s.gen, Held: held})
		s.accepted = true
	}
	for i := from; i < len(s.deltas); i++ {
		s.send(modelcall.Frame{Kind: schema.FrameDelta, Gen: s.gen, Seq: i, Body: s.deltas[i]})
	}
	if s.final != nil {
		s.send(*s.final)
	}
}

// forget removes the call from its rollout: a repeated request is a new call.
func (s *state) forget() {
	s.rollouts.change(s.key, func(r *rollout) { r.forget(s) })
}

// dropAnswer drops the answer, since the worker has it. The rest of the state stays,
// so that a late request does not start a second generation.
func (s *state) dropAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answered {
		s.received, s.deltas, s.final, s.incoming = true, nil, nil, modelcall.IncomingCall{Key: s.key}
	}
}

// sendBeat sends an accept the first time, and beats afterwards.
func (s *state) sendBeat(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() {
		return
	}
	kind := schema.FrameBeat
	if !s.accepted {
		kind, s.accepted = schema.FrameAccept, true
	}
	s.send(modelcall.Frame{Kind: kind, Gen: s.gen, Held: held})
}

// wanted reports whether the call still needs an answer. The caller holds the
// lock.
func (s *state) wanted() bool { return !s.answered && s.ctx.Err() == nil }

// waits returns the time of the call, and whether it waits to be handed out.
func (s *state) waits() (since time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, s.wanted() && !s.out.Load() && !s.opened.IsZero()
}

// send sends a frame. The worker asks again for a lost one. The caller holds
// the lock.
func (s *state) send(f modelcall.Frame) {
	if err := s.incoming.Send(f); err != nil {
		s.rollouts.cfg.Log.Debug().Err(err).Stringer("call", s.key).Msg("a frame was not sent")
	}
	switch f.Kind {
	case schema.FrameAccept:
		crash.Here("trainer.accept")
	case schema.FrameBeat:
		crash.Here("trainer.beat")
	case schema.FrameDelta:
		crash.Here("trainer.delta")
	case schema.FrameFinal:
		crash.Here("trainer.final")
	case schema.FrameFault:
		crash.Here("trainer.fault")
	}
}

// flush sends the buffered pieces. The caller holds the lock.
func (s *state) flush() error {
	if d := s.buffered.drain(); d != nil {
		return s.sendDelta(d)
	}
	return nil
}

// sendDelta sends one piece. The caller holds the lock.
func (s *state) sendDelta(d *schema.Delta) error {
	f, err := s.add(d)
	if err != nil {
		return err
	}
	s.accepted, s.sent = true, time.Now()
	s.send(f)
	return nil
}

// add numbers a piece and keeps it for a worker that asks again. The caller
// holds the lock.
func (s *state) add(d *schema.Delta) (modelcall.Frame, error) {
	body, err := s.rollouts.server.EncodeFrame(s.ctx, d)
	if err != nil {
		return modelcall.Frame{}, err
	}
	f := modelcall.Frame{Kind: schema.FrameDelta, Gen: s.gen, Seq: len(s.deltas), Body: body}
	s.deltas = append(s.deltas, body)
	return f, nil
}

// finish sends the last frame, and retains it for a repeated request. The caller holds the lock.
func (s *state) finish(f modelcall.Frame, retain bool) error {
	if !s.wanted() {
		return ErrOver
	}
	s.answered, s.buffered = true, deltaBuffer{}
	if s.later != nil {
		s.later.Stop()
	}
	if retain {
		s.final = &f
	}
	s.send(f)
	s.end(nil)
	return nil
}

// refuse answers with a fault. After a retryable one the next request is a new call.
func (s *state) refuse(f *schema.Fault) error {
	body, err := s.rollouts.server.EncodeFrame(s.ctx, f)
	if err != nil {
		return err
	}
	frame := modelcall.Frame{Kind: schema.FrameFault, Gen: s.gen, Body: body}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() { // an answer stays, for a worker that asks again
		return ErrOver
	}
	if !schema.RetryableStatus(f.Status) {
		return s.finish(frame, true)
	}
	err = ErrOver
	s.rollouts.change(s.key, func(r *rollout) { // a request arrives before both or after both
		r.forget(s)
		err = s.finish(frame, false)
	})
	return err
}

// answer sends the result of a tool call, or a verdict.
func (s *state) answer(kind schema.FrameKind, m schema.Message) {
	body, err := s.rollouts.server.EncodeFrame(s.ctx, m)
	if err == nil {
		s.mu.Lock()
		err = s.finish(modelcall.Frame{Kind: kind, Gen: s.gen, Body: body}, true)
		s.mu.Unlock()
	}
	if err != nil {
		s.rollouts.cfg.Log.Debug().Err(err).Stringer("call", s.key).Msg("the answer was not sent")
	}
}
