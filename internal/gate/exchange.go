package gate

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

// exchange is one call and its answer. A request of the agent attaches to it.
// If that request breaks off, an equal one may attach later and gets the same
// answer, so a retry makes no second generation. A stream that has begun cannot be
// attached to.
type exchange struct {
	s        *Session
	number   int
	of       origin
	call     schema.Call
	encoding dialect.Encoding
	ctx      context.Context // ends when the answer is no longer wanted
	cancel   context.CancelCauseFunc

	mu        sync.Mutex
	client    *client // the newest attached client; nil before the first
	deltas    []*schema.Delta
	pieces    pieces // the joined deltas
	gen       string
	released  bool // deltas of gen were handed to a streaming client, so no other generation may replace gen
	finished  bool
	committed bool // the answer reached the agent
	spoilt    bool // the answer could not be encoded for the agent
	reply     schema.Reply
	err       error
	wait      *waiting // nil: it waits for nothing
	// badAnswers counts answers that were refused, in a row; refused counts all.
	badAnswers, refused int
	checked             *agentReply // the newest final that passed check, converted for the agent; nil: none

	// Guarded by the session's lock.
	idle      bool // the trainer or upstream is absent or holds the call
	attached  bool
	detached  chan struct{} // detach closes it; nil: no equal request waits for the attached one to go
	forget    *time.Timer   // runs while no client is attached
	forgotten bool
	retained  int64 // bytes of the session's memory
}

var (
	errAbandoned  = errors.New("the agent gave the call up")
	errRegenerate = errors.New("a stream that was begun cannot go on with another generation")
)

// origin identifies a request; equal requests have equal origins.
type origin struct {
	path, query string
	size        int // of the body, in bytes
	fingerprint uint64
}

// enter returns the exchange for a request, or makes a new one. A request takes
// over an equal exchange that lost its client. If an equal exchange still has
// its client, the request may be a retry, so it waits a moment for that client to go. If
// the client stays, the request gets a new exchange, as another call. If fresh is true
// and err is nil, the caller must call run.
func (s *Session) enter(ctx context.Context, of origin, isRetry bool, req history.Request, room *room) (x *exchange, fresh bool, err error) {
	longest := s.cfg.Timing.Equal
	if isRetry {
		longest = s.cfg.Timing.Retry
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
				_ = room.set(0) // a smaller size is never refused
				s.mu.Unlock()
				return e, false, nil
			}
			open = e
		}
		if open == nil || waited {
			if x, err = s.begin(of, req); err == nil { // from here on the exchange retains the memory
				x.retained, room.retained = room.retained, 0
			}
			s.mu.Unlock()
			return x, true, err
		}
		if open.detached == nil {
			open.detached = make(chan struct{})
		}
		over := open.detached
		s.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(longest)
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

// begin numbers a new call. A *schema.InvalidError names a field of the agent's
// request. The caller holds the session's lock.
func (s *Session) begin(of origin, req history.Request) (*exchange, error) {
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
	call := req.Call
	call.V = schema.Version
	call.Key = schema.Key{Rollout: s.cfg.Rollout, Attempt: s.cfg.Attempt, Call: s.count + 1}.String()
	if err := schema.Validate(&call); err != nil { // a field that no trainer would take, such as a long model name
		return nil, err
	}
	s.count++
	call.Shares, call.Digest = s.recent.Place(s.count, &req, s.cfg.Memory.conversations)
	if fault := s.repeats.asked(call.Tag, call.Digest, s.cfg.Options.MaxRepeats); fault != nil {
		s.count-- // every later call is refused, too
		return nil, fault
	}
	x := &exchange{s: s, number: s.count, of: of, call: call, encoding: req.Encoding}
	x.attach()
	s.alive = append(s.alive, x)
	s.clock.change(1, 0)
	x.ctx, x.cancel = context.WithCancelCause(s.life)
	s.calls.Add(1)
	return x, nil
}

// attach notes that a client waits. The caller holds the session's lock.
func (x *exchange) attach() {
	x.attached, x.detached = true, nil
	if x.forget != nil {
		x.forget.Stop()
		x.forget = nil
	}
}

// detach notes that no client waits. An exchange without a fully delivered answer is kept
// for a while, since the client may return. A stream that has begun is not
// kept, since it cannot begin again.
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

// drop removes the exchange. The caller holds the session's lock.
func (x *exchange) drop() {
	if x.forgotten {
		return
	}
	x.forgotten = true
	x.s.retain(-x.retained)
	x.s.alive = slices.DeleteFunc(x.s.alive, func(e *exchange) bool { return e == x })
}

// run asks the model when one of the session's slots is free.
func (x *exchange) run() {
	s := x.s
	defer s.calls.Done()
	defer x.cancel(nil)
	if err := x.slot(); err != nil {
		x.finish(err, 0)
		return
	}
	start := time.Now()
	s.cfg.Observer.CallBegan(x.number, &x.call)
	err := s.cfg.Model.Complete(x.ctx, x.call, x.frame)
	<-s.slots
	x.finish(err, time.Since(start))
}

// slot waits until one of the session's slots is free, and takes it.
func (x *exchange) slot() error {
	select {
	case x.s.slots <- struct{}{}:
		return nil
	default:
	}
	x.mu.Lock()
	events := x.beginWait(schema.WaitSlot, "", nil)
	x.mu.Unlock()
	x.report(events)
	select {
	case x.s.slots <- struct{}{}:
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
	x.mu.Lock()
	events = x.endWait()
	x.mu.Unlock()
	x.report(events)
	return nil
}

// frame processes a frame. It checks a final, and keeps the answer for finish.
func (x *exchange) frame(f schema.Frame) error {
	if f.Kind == schema.FrameFinal {
		if err := x.check(f); err != nil {
			return err
		}
	}
	x.setIdle(f.Kind == schema.FrameAbsent || f.Held)
	if err := x.noteWait(f); err != nil {
		return err
	}
	receiver, err := x.take(f)
	if err != nil {
		return err
	}
	if receiver != nil {
		receiver.push(f.More)
	}
	return nil
}

// noteWait notes and reports whether the call waits now. An error ends the call.
func (x *exchange) noteWait(f schema.Frame) error {
	x.mu.Lock()
	events, err := x.waitEvents(f)
	x.mu.Unlock()
	x.report(events)
	return err
}

// take takes the generation of a frame, and its delta if it has one. It returns the
// client to which the delta can be sent now; nil: none.
func (x *exchange) take(f schema.Frame) (receiver *client, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f.Gen != "" && f.Gen != x.gen {
		if x.released {
			return nil, errRegenerate
		}
		x.gen, x.deltas, x.pieces = f.Gen, nil, pieces{}
	}
	if f.Kind != schema.FrameDelta {
		return nil, nil
	}
	x.s.cfg.Observer.CallDelta(x.number, f.Delta)
	if x.s.cfg.Options.Stream != schema.StreamPass {
		return nil, nil
	}
	d, err := x.pieces.add(f.Delta)
	if err != nil {
		return nil, refusal(err)
	}
	if d != nil {
		x.deltas = append(x.deltas, d)
	}
	return x.client, nil
}

// check checks a final and keeps its form for the agent. An error refuses the answer.
func (x *exchange) check(f schema.Frame) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := &x.pieces
	if f.Gen != x.gen {
		if x.released {
			return nil // take ends the call
		}
		p = &pieces{} // x.pieces is of an earlier generation
	}
	answer, err := x.answered(f.Reply, p)
	if err != nil {
		return refusal(err)
	}
	x.checked = answer
	return nil
}

// refusal returns the error that refuses an answer, so that the trainer is asked for
// another one.
func refusal(err error) error {
	f := schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "the trainer's answer is refused: %v", err)
	f.Status = http.StatusBadGateway
	return f
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

// errNoAnswer ends a call if the model returned neither an answer nor an error.
var errNoAnswer = errors.New("the model returned no answer")

func (x *exchange) finish(err error, took time.Duration) {
	s := x.s
	x.setIdle(false)
	end := CallEnd{Took: took}
	answer := x.checked // Complete has returned, and no other goroutine writes it
	if err == nil && answer == nil {
		err = errNoAnswer
	}
	if err == nil {
		end.Note, end.Reply = answer.note, answer.own
	} else {
		end.Fault = faultOf(err)
	}
	s.mu.Lock()
	s.clock.change(-1, 0)
	st := s.stats[x.call.Tag]
	st.Count++
	st.Refused += x.refused
	if err == nil {
		usage := answer.Usage
		st.PromptTokens += usage.PromptTokens
		st.CompletionTokens += usage.CompletionTokens
		st.CachedTokens += usage.CachedTokens
		st.CostUSD = s.costs.add(x.call.Tag, usage.CostUSD)
		if x.call.Tag == schema.TagAgent {
			s.repeats.answered(&answer.Reply)
		}
		for _, e := range answer.Edits {
			if len(s.edits) < maxEdits {
				s.edits[e] = true
			}
		}
		if usage.PromptTokens > 0 {
			s.bytesPerToken = float64(x.of.size) / float64(usage.PromptTokens)
		}
	}
	s.stats[x.call.Tag] = st
	if x.call.Tag == schema.TagAgent && (err == nil || x.ctx.Err() == nil) { // a call that nobody waits for was not refused
		s.refused = end.Fault
	}
	s.mu.Unlock()
	if end.Fault != nil && (end.Fault.Code == schema.CodeNoTrainer || end.Fault.Code == schema.CodeBadAnswer) {
		s.end(end.Fault) // before the agent sees the error
	}
	x.mu.Lock()
	end.Gen = x.gen
	x.finished, x.err = true, err
	if err == nil {
		x.reply = answer.Reply
	}
	receiver, events := x.client, x.endWait()
	x.mu.Unlock()
	x.report(events)
	s.cfg.Observer.CallEnded(x.number, end)
	if receiver != nil {
		receiver.push(false)
	}
}

func faultOf(err error) *schema.Fault {
	var f *schema.Fault
	if errors.As(err, &f) {
		return f
	}
	return schema.Faultf("call", schema.CodeInternal, schema.WhoWorker, "%v", err)
}

// encodeFailed ends a call after its answer could not be encoded for the agent. The call
// does not count as delivered.
func (x *exchange) encodeFailed(err error) {
	x.mu.Lock()
	x.spoilt = true
	x.mu.Unlock()
	if x.call.Tag == schema.TagAgent {
		x.s.turned(faultOf(err))
	}
	x.cancel(err)
}

// setDeadline sets a deadline for the agent to read the rest of the answer.
func (x *exchange) setDeadline() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.client != nil {
		x.client.setDeadline()
	}
}

// commit notes that the generation reached the agent.
func (x *exchange) commit() {
	x.mu.Lock()
	ok, gen, digest := x.finished && x.err == nil && !x.spoilt && !x.committed, x.gen, x.reply.Digest
	x.committed = x.committed || ok
	x.mu.Unlock()
	if !ok {
		return
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.committed = append(x.s.committed, schema.Committed{Call: x.number, Gen: gen, Digest: digest, Tag: x.call.Tag})
}
