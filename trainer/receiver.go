package trainer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// receiver handles the workers' messages about calls.
type receiver struct {
	*base
	attachment    *attachment
	outstanding   *outstanding
	rollouts      *rollouts
	rebuilder     *rebuilder
	handout       *handout
	beats         *beats
	endings       *endings
	orphans       *orphans
	refusals      *refusals
	tools         *tools
	verifications *verifications
}

// onCall handles a worker's message about a call: a new or repeated request, a
// cancel, or a refused answer.
func (r *receiver) onCall(a modelcall.IncomingCall) {
	if r.life.Err() != nil || !r.attachment.attached.Load() {
		return
	}
	if a.Reject != nil {
		r.refusals.refuse(a)
		return
	}
	if !r.enter() { // Close waits for take, which writes the ledger and starts goroutines
		return
	}
	p := r.take(a)
	r.bg.Done()
	if p != nil { // after Done: begin may run an Answerer, which Close must not wait for
		r.begin(p, a)
	}
}

// take handles a request or a cancel. It returns a new model call, which must begin; nil:
// there is none.
func (r *receiver) take(a modelcall.IncomingCall) *Pending {
	id := a.Key.Rollout
	if a.Cancel {
		if cancelled := r.rollouts.remove(a); cancelled != nil {
			cancelled.end(errCancelled)
		}
		return nil
	}
	got := r.rollouts.arrive(a, r.answers(id))
	switch {
	case got.rollout != nil:
		r.bg.Go(func() { r.learn(id, got.rollout) })
		r.endings.met(id)
		return nil
	case got.newer > 0:
		r.sendFault(a, staleFault("attempt %d is over, %d has begun", a.Key.Attempt, got.newer))
		return nil
	case got.call == nil:
		return nil
	}
	r.outstanding.sawAttempt(id, a.Key.Attempt)
	for _, s := range got.received {
		s.dropAnswer()
	}
	for _, s := range got.stale {
		s.end(errCancelled)
	}
	switch {
	case !got.fresh:
		got.call.attach(a, r.handout.holds(id))
	case a.Tool:
		r.tools.run(got.call, a)
	case a.Verify:
		r.verifications.run(got.call, a)
	default:
		return &Pending{state: got.call}
	}
	return nil
}

// answers reports whether this process answers the calls of a rollout.
func (r *receiver) answers(id schema.ID) bool {
	_, ok := r.outstanding.get(id)
	return ok || r.cfg.AnswerAll
}

// learn reads the highest attempt of a rollout that is new to this process. So a
// restarted trainer does not answer a fenced worker.
func (r *receiver) learn(id schema.ID, of *rollout) {
	ctx, cancel := context.WithTimeout(r.life, time.Second) // its worker waits two seconds for a frame
	defer cancel()
	s, err := r.requests.Records.State(ctx, id)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		r.cfg.Log.Debug().Err(err).Str("rollout", string(id)).Msg("a rollout's state could not be read")
	}
	o, _ := r.outstanding.get(id)
	over := s.Status.Terminal()
	waiting := r.rollouts.learned(id, of, max(s.Attempt, o.attempt), over)
	if !over && !r.answers(id) && !r.adopts(ctx, id) {
		return
	}
	for _, a := range waiting {
		if over {
			r.sendFault(a, staleFault("the rollout has a result"))
			continue
		}
		go r.onCall(a) // not a part of bg: it may run an Answerer
	}
}

// adopts reports whether the calls of an orphan are answered from now on.
func (r *receiver) adopts(ctx context.Context, id schema.ID) bool {
	answered, err := r.orphans.found(ctx, id)
	if err != nil {
		r.cfg.Log.Warn().Err(err).Str("rollout", string(id)).Msg("an open rollout of another process was not looked at; its worker asks again")
		r.rollouts.drop(id)
	}
	return answered
}

// staleFault refuses a call of an attempt or a rollout that has ended.
func staleFault(format string, args ...any) *schema.Fault {
	f := schema.Faultf("call", schema.CodeStaleAttempt, schema.WhoWorker, format, args...)
	f.Status = http.StatusConflict
	return f
}

// begin decodes and checks a new call. Serve answers it at once if it has room;
// otherwise begin queues it.
func (r *receiver) begin(p *Pending, a modelcall.IncomingCall) {
	p.Call.Gen, p.Call.pending = p.state.gen, p
	err := schema.Decode(a.Body, &p.Call.Call)
	needFull := false
	switch {
	case err != nil:
	case !a.Key.Is(p.Call.Key):
		err = fmt.Errorf("key: %q does not match the subject's %s", p.Call.Key, a.Key)
	default:
		needFull, err = r.rebuilder.rebuild(a.Key, &p.Call)
	}
	close(p.state.read)
	if needFull {
		p.state.forget()
		if err := a.Send(modelcall.Frame{Kind: schema.FrameNeedFull}); err != nil {
			r.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a frame was not sent")
		}
		return
	}
	var fault *schema.Fault
	if err != nil {
		fault = schema.Faultf("call", schema.CodeInvalid, schema.WhoWorker, "%v", err)
		fault.Status = 400
	} else if r.cfg.Check != nil {
		fault = r.cfg.Check(&p.Call.Call)
	}
	r.beats.open(p.state, a)
	if fault != nil {
		if err := p.refuse(fault, "the fault of Check"); err != nil {
			r.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a refusal was not sent")
		}
		return
	}
	r.handout.add(p)
}

func (r *receiver) sendFault(a modelcall.IncomingCall, f *schema.Fault) {
	body, err := r.server.EncodeFrame(r.life, f)
	if err == nil {
		err = a.Send(modelcall.Frame{Kind: schema.FrameFault, Gen: r.rollouts.newGen(), Body: body})
	}
	if err != nil {
		r.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a fault was not sent")
	}
}
