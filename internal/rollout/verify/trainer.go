package verify

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// byTrainer is a running verification by the trainer.
type byTrainer struct {
	*verifier
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
	reported  time.Time // of the last event of the wait
	events    int
}

// askTrainer lets the trainer find a step's reward. The time limit does not count
// time in which no trainer verifies, or the server cannot be reached.
func (v *verifier) askTrainer(ctx context.Context, p *record.Phase) error {
	b := &byTrainer{verifier: v, phase: p.Name, out: p.Output("stdout"), err: p.Output("stderr"), away: true, since: time.Now()}
	s := v.Step
	v.Place.Stages.Clock.Notify(b.suspend)
	over := ends.Fail(schema.Faultf("verify", schema.CodeTimeout, schema.WhoTrainer, "no verdict within %d ms", s.VerifyMS))
	start := time.Now()
	b.left = func() time.Duration { return stage.MS(s.VerifyMS) + b.stood() - time.Since(start) }
	ctx, stop := stage.Limit(ctx, b.left, over)
	defer stop()
	ctx, b.end = context.WithCancelCause(ctx)
	defer b.end(nil)
	asked := time.Now()
	verdict, err := v.Ask(ctx, record.Masked(v.rec, b.message()), b.heard, func(ctx context.Context, number int, op *schema.Operation) (schema.OperationResult, error) {
		result, err := b.operate(ctx, number, op)
		var f *schema.Fault
		if errors.As(err, &f) {
			err = record.Masked(v.rec, f)
		}
		return record.Masked(v.rec, result), err
	})
	v.rec.Telemetry.VerifyEnded(time.Since(asked), asFault(ctx, err))
	b.waitsFor(nil, true)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return unverified(err)
	}
	v.accept(&verdict)
	return nil
}

// message returns the message that asks the trainer.
func (v *byTrainer) message() schema.Verification {
	q, s := v.Place.Request, v.Step
	return schema.Verification{
		V: schema.Version, Key: schema.Key{Rollout: q.ID, Attempt: v.Place.Attempt, Call: s.Index + 1}.String(), Task: q.Task.Name, Bundle: q.Task.Bundle, Step: s.Name, Instruction: s.Instruction,
		Group: q.Group, Index: q.Index, Labels: q.Labels, Workdir: v.box.Workdir(), Exit: v.Exit, Fault: v.Fault, LimitMS: s.VerifyMS,
	}
}

// asFault returns the fault of a verification for the metrics; nil: it has a verdict. An
// aborted one has no other fault.
func asFault(ctx context.Context, err error) *schema.Fault {
	var f *schema.Fault
	switch {
	case errors.As(context.Cause(ctx), &f), errors.As(err, &f), err == nil && ctx.Err() == nil:
		return f
	case ctx.Err() != nil:
		return &schema.Fault{Code: schema.CodeAborted}
	}
	return schema.Faultf("verify", schema.CodeInternal, schema.WhoWorker, "%v", err)
}

// unverified turns a failed verification into the end of the rollout.
func unverified(err error) error {
	var f *schema.Fault
	if !errors.As(err, &f) {
		return err
	}
	fault := *f
	fault.Stage, fault.Who, fault.Status, fault.AgentMessage = "verify", schema.WhoTrainer, 0, ""
	return ends.Fail(&fault)
}

// accept takes a trainer's verdict.
func (v *verifier) accept(verdict *schema.Verdict) {
	if verdict.Reward != nil {
		rewards := maps.Clone(verdict.Rewards)
		if rewards == nil {
			rewards = schema.SortedMap[float64]{}
		}
		if key := cmp.Or(v.Step.Verify.RewardKey, "reward"); !hasName(rewards, key) {
			rewards[key] = *verdict.Reward
		}
		v.verdict = Verdict{Reward: verdict.Reward, Rewards: rewards, Known: true}
	}
	v.rec.Metrics(v.Step.Name, verdict.Metrics)
	for _, text := range verdict.Messages {
		v.rec.Note("%s", text)
	}
}

func hasName(all schema.SortedMap[float64], name string) bool {
	_, ok := all[name]
	return ok
}

// stood returns the time that does not count towards the limit.
func (v *byTrainer) stood() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.suspended || v.away {
		return v.paused + time.Since(v.since)
	}
	return v.paused
}

// suspend is called when the rollout is suspended or continues.
func (v *byTrainer) suspend(suspended bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pause(suspended, v.away)
}

// pause notes the reasons for which the clock stands. The caller holds the lock.
func (v *byTrainer) pause(suspended, away bool) {
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
func (v *byTrainer) heard(f schema.Frame) error {
	v.mu.Lock()
	v.pause(v.suspended, f.Kind == schema.FrameAbsent)
	v.mu.Unlock()
	v.waitsFor(f.Fault, f.Kind != schema.FrameAbsent)
	return nil
}

// waitsFor emits the event of a wait for the trainer when it begins, changes, ends,
// and sometimes in between.
func (v *byTrainer) waitsFor(why *schema.Fault, ended bool) {
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
			fault := *why
			fault.Message = schema.Clip(fault.Message, 4000)
			w.Fault = &fault
		}
		same := v.wait.Fault == nil && why == nil || v.wait.Fault != nil && w.Fault != nil && v.wait.Fault.Message == w.Fault.Message
		*v.wait = w
		if !fresh && same && now.Sub(v.reported) < waitAgain {
			v.mu.Unlock()
			return
		}
		v.reported = now
	}
	v.mu.Unlock()
	v.rec.Events.Emit(&schema.Event{Type: schema.EventWait, Wait: &w})
}

const (
	// waitAgain is the interval of events of a wait that goes on unchanged.
	waitAgain = 30 * time.Second
	// maxVerifyEvents bounds the events of operations of one verification.
	maxVerifyEvents = 1000
)

// emit sends the event of an operation.
func (v *byTrainer) emit(e *schema.VerifyEvent) {
	v.mu.Lock()
	v.events++
	n := v.events
	v.mu.Unlock()
	if n <= maxVerifyEvents {
		v.rec.Events.Emit(&schema.Event{Type: schema.EventVerify, Verify: e})
	}
	if n == maxVerifyEvents+1 {
		v.rec.Note("%s: only the first %d operations of the trainer have events", v.phase, maxVerifyEvents)
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
