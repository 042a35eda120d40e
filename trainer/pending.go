package trainer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// ErrOver is returned when a call is answered that has its answer already, was
// given up by its worker, or belongs to an attempt that is over.
var ErrOver = errors.New("the call is over")

var errCancelled = errors.New("the worker gave the call up")

// Pending is a model call that waits for its answer. Exactly one of Reply,
// Stream's Final and Fault ends it.
type Pending struct {
	Call schema.Call

	t   *Trainer
	ctx context.Context
	end context.CancelCauseFunc

	mu       sync.Mutex
	asked    broker.Asked
	gen      string
	deltas   [][]byte // encoded, for a worker that asks again in the middle
	final    *broker.Frame
	answered bool
	accept   *time.Timer
	said     bool // the worker knows that it is accepted
}

func (t *Trainer) newPending() *Pending {
	p := &Pending{t: t, gen: newGen()}
	p.ctx, p.end = context.WithCancelCause(t.life)
	return p
}

// Context ends when nobody waits for the answer any more.
func (p *Pending) Context() context.Context { return p.ctx }

// open takes the first asking.
func (p *Pending) open(a broker.Asked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = a
	p.accept = time.AfterFunc(acceptAfter, func() {
		p.mu.Lock()
		said := p.said
		p.mu.Unlock()
		if !said {
			p.sign(false)
		}
	})
}

// attach takes a repeated asking: it gets the finished answer, or joins the
// generation that is under way.
func (p *Pending) attach(a broker.Asked, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = a
	from := 0
	if a.ResumeGen == p.gen {
		from = min(a.Resume, len(p.deltas))
	}
	if p.final == nil {
		p.send(broker.Frame{Kind: schema.FrameAccept, Gen: p.gen, Held: held})
		p.said = true
	}
	for i := from; i < len(p.deltas); i++ {
		p.send(broker.Frame{Kind: schema.FrameDelta, Gen: p.gen, Seq: i, Body: p.deltas[i]})
	}
	if p.final != nil {
		p.send(*p.final)
	}
}

// sign sends an accept the first time, a beat afterwards.
func (p *Pending) sign(held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered || p.ctx.Err() != nil {
		return
	}
	kind := schema.FrameBeat
	if !p.said {
		kind, p.said = schema.FrameAccept, true
	}
	p.send(broker.Frame{Kind: kind, Gen: p.gen, Held: held})
}

// send needs the lock. A frame that is lost is asked for again.
func (p *Pending) send(f broker.Frame) {
	if err := p.asked.Send(f); err != nil {
		p.t.cfg.Log.Debug().Err(err).Str("call", p.Call.Key).Msg("a frame was not sent")
	}
}

// handOut says whether the call still wants an answer.
func (p *Pending) handOut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.answered && p.ctx.Err() == nil
}

// Reply answers the call.
func (p *Pending) Reply(r *schema.Reply) error {
	r.V = schema.Version
	body, err := p.t.side.EncodeFrame(r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finish(broker.Frame{Kind: schema.FrameFinal, Gen: p.gen, Seq: len(p.deltas), Body: body}, true)
}

// Fault refuses the call. With a retryable status (425, 429, 5xx) the worker
// asks again and gets a new Pending; otherwise the refusal is final.
func (p *Pending) Fault(f *schema.Fault) error {
	if f.Status == 0 {
		f.Status = 500
	}
	body, err := p.t.side.EncodeFrame(f)
	if err != nil {
		return err
	}
	retryable := schema.RetryableStatus(f.Status)
	if retryable { // before it is sent: the worker may be back at once
		if key, err := schema.ParseKey(p.Call.Key); err == nil {
			p.t.forget(key)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finish(broker.Frame{Kind: schema.FrameFault, Gen: p.gen, Body: body}, !retryable)
}

// finish needs the lock.
func (p *Pending) finish(f broker.Frame, keep bool) error {
	if p.answered || p.ctx.Err() != nil {
		return ErrOver
	}
	p.answered = true
	if p.accept != nil {
		p.accept.Stop()
	}
	if keep {
		p.final = &f
	}
	p.send(f)
	p.end(nil)
	return nil
}

// Stream answers the call piece by piece.
func (p *Pending) Stream() *Stream { return &Stream{p} }

// Stream sends an answer while it is generated. A worker that loses a piece
// asks for it again.
type Stream struct{ p *Pending }

// Delta sends one piece.
func (s *Stream) Delta(d *schema.Delta) error {
	d.V = schema.Version
	body, err := s.p.t.side.EncodeFrame(d)
	if err != nil {
		return err
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.answered || s.p.ctx.Err() != nil {
		return ErrOver
	}
	s.p.said = true
	s.p.send(broker.Frame{Kind: schema.FrameDelta, Gen: s.p.gen, Seq: len(s.p.deltas), Body: body})
	s.p.deltas = append(s.p.deltas, body)
	return nil
}

// Final ends the stream with the whole reply, which repeats what the deltas
// said.
func (s *Stream) Final(r *schema.Reply) error { return s.p.Reply(r) }
