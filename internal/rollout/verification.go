package rollout

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// verification is a running verification by the trainer.
type verification struct {
	r        *Rollout
	s        *step
	sb       sandboxes.Sandbox
	phase    string
	out, err io.Writer // receive the output of commands
	end      context.CancelCauseFunc
	left     func() time.Duration // until the time limit

	mu        sync.Mutex
	suspended bool // the worker cannot reach the server
	away      bool // no trainer verifies now
	since     time.Time
	paused    time.Duration // without the time since since
	wait      *schema.WaitEvent
	waits     time.Time // begin of the wait
	told      time.Time // of the last event of the wait
	events    int
}

// askTrainer lets the trainer find a step's reward. The time limit does not count
// time in which no trainer verifies, or the server cannot be reached.
func (r *Rollout) askTrainer(ctx context.Context, p *record.Phase, s *step, sb sandboxes.Sandbox) error {
	v := &verification{r: r, s: s, sb: sb, phase: p.Name, out: p.Output("stdout"), err: p.Output("stderr"), away: true, since: time.Now()}
	r.clock.tell(v.suspend)
	over := ends.Fail(schema.Faultf("verify", schema.CodeTimeout, schema.WhoTrainer, "no verdict within %d ms", s.VerifyMS))
	start := time.Now()
	v.left = func() time.Duration { return ms(s.VerifyMS) + v.stood() - time.Since(start) }
	ctx, stop := limit(ctx, v.left, over)
	defer stop()
	ctx, v.end = context.WithCancelCause(ctx)
	defer v.end(nil)
	q := &r.Request
	verdict, err := r.Services.Verify(ctx, record.Masked(r.Record, schema.Verification{
		V: schema.Version, Key: schema.Key{Rollout: q.ID, Attempt: r.Attempt, Call: s.index + 1}.String(), Task: q.Task.Name, Bundle: q.Task.Bundle, Step: s.Name, Instruction: s.Instruction,
		Group: q.Group, Index: q.Index, Labels: q.Labels, Workdir: sb.Workdir(), Exit: s.result.Exit, Fault: s.result.Fault, LimitMS: s.VerifyMS,
	}), v.heard, func(ctx context.Context, number int, op *schema.Operation) (schema.OperationResult, error) {
		result, err := v.operate(ctx, number, op)
		var f *schema.Fault
		if errors.As(err, &f) {
			err = record.Masked(r.Record, f)
		}
		return record.Masked(r.Record, result), err
	})
	v.waitsFor(nil, true)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return unverified(err)
	}
	v.accept(&verdict)
	return nil
}

// unverified turns a failed verification into the end of the rollout.
func unverified(err error) error {
	var none *modelcall.NoTrainerError
	var full *broker.FullError
	var f *schema.Fault
	switch {
	case errors.As(err, &none):
		return ends.Fail(schema.Faultf("verify", schema.CodeNoTrainer, schema.WhoTrainer, "%v", err))
	case errors.As(err, &full):
		return ends.Fail(schema.Faultf("verify", schema.CodeFull, schema.WhoTrainer, "%v", err))
	case errors.As(err, &f):
		told := *f
		told.Stage, told.Who, told.Status = "verify", schema.WhoTrainer, 0
		return ends.Fail(&told)
	default:
		return err
	}
}

// accept copies a verdict into the result.
func (v *verification) accept(verdict *schema.Verdict) {
	r, s := v.r, v.s
	if verdict.Reward != nil {
		rewards := maps.Clone(verdict.Rewards)
		if rewards == nil {
			rewards = schema.SortedMap[float64]{}
		}
		if key := cmp.Or(s.Verify.RewardKey, "reward"); !hasName(rewards, key) {
			rewards[key] = *verdict.Reward
		}
		s.result.Reward, s.result.Rewards, s.verified = verdict.Reward, rewards, true
	}
	r.Record.Metrics(s.Name, verdict.Metrics)
	for _, text := range verdict.Messages {
		r.Record.Note("%s", text)
	}
}

func hasName(all schema.SortedMap[float64], name string) bool {
	_, ok := all[name]
	return ok
}

// stood returns the time that does not count towards the limit.
func (v *verification) stood() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.suspended || v.away {
		return v.paused + time.Since(v.since)
	}
	return v.paused
}

// suspend is told when the rollout is suspended or continues.
func (v *verification) suspend(suspended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pause(suspended, v.away)
}

// pause notes the reasons for which the clock stands. The caller holds the lock.
func (v *verification) pause(suspended, away bool) {
	was, is := v.suspended || v.away, suspended || away
	v.suspended, v.away = suspended, away
	switch {
	case is && !was:
		v.since = time.Now()
	case was && !is:
		v.paused += time.Since(v.since)
	}
}

// heard notes from a frame whether a trainer verifies now.
func (v *verification) heard(f schema.Frame) error {
	v.mu.Lock()
	v.pause(v.suspended, f.Kind == schema.FrameAbsent)
	v.mu.Unlock()
	v.waitsFor(f.Fault, f.Kind != schema.FrameAbsent)
	return nil
}

// waitsFor emits the event of a wait for the trainer when it begins, changes, ends,
// and sometimes in between.
func (v *verification) waitsFor(why *schema.Fault, ended bool) {
	v.mu.Lock()
	now := time.Now()
	fresh := v.wait == nil
	switch {
	case ended && fresh:
		v.mu.Unlock()
		return
	case fresh:
		v.wait, v.waits = &schema.WaitEvent{For: schema.WaitVerify}, now
	}
	w := *v.wait
	w.MS, w.Ended = now.Sub(v.waits).Milliseconds(), ended
	if ended {
		v.wait = nil
	} else {
		w.Tries++
		if w.Fault = why; why != nil {
			told := *why
			told.Message = schema.Clip(told.Message, 4000)
			w.Fault = &told
		}
		same := v.wait.Fault == nil && why == nil || v.wait.Fault != nil && w.Fault != nil && v.wait.Fault.Message == w.Fault.Message
		*v.wait = w
		if !fresh && same && now.Sub(v.told) < waitAgain {
			v.mu.Unlock()
			return
		}
		v.told = now
	}
	v.mu.Unlock()
	v.r.Record.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &w})
}

const (
	// waitAgain is the interval of events of a wait that goes on unchanged.
	waitAgain = 30 * time.Second
	// maxVerifyEvents bounds the events of operations of one verification.
	maxVerifyEvents = 1000
)

// tell emits the event of an operation.
func (v *verification) tell(e *schema.VerifyEvent) {
	v.mu.Lock()
	v.events++
	n := v.events
	v.mu.Unlock()
	if n <= maxVerifyEvents {
		v.r.Record.Events.Emit(&schema.Event{Type: schema.EventVerify, Verify: e})
	}
	if n == maxVerifyEvents+1 {
		v.r.Record.Note("%s: only the first %d operations of the trainer have events", v.phase, maxVerifyEvents)
	}
}

// entries lists a folder in the form of the protocol.
func entries(list []sandboxes.FileInfo) []schema.Entry {
	out := make([]schema.Entry, 0, len(list))
	for _, f := range list {
		out = append(out, schema.Entry{Name: schema.Clip(f.Name, maxEntryName), Kind: kindOf(f), Size: f.Size, Mode: int(f.Mode.Perm())})
	}
	slices.SortFunc(out, func(a, b schema.Entry) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
