package trainer

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// Verifier finds the reward of a step with verify.by "trainer", after its agent
// has ended. The context ends when the verdict is no longer wanted, for example
// after the time limit. A Verifier runs once for each verification, unless this
// process is started again or another attempt asks anew: the sandbox may then
// have files of the earlier run.
//
// An error ends the rollout as failed, without a reward. After a *schema.Fault
// with a retryable status the worker asks again.
type Verifier func(ctx context.Context, h *Handle) (*schema.Verdict, error)

// verifications runs the Verifier for rollouts of this trainer.
type verifications struct {
	*base
	beats *beats
}

// listen subscribes to verifications, if this trainer verifies.
func (v *verifications) listen(onCall func(modelcall.IncomingCall)) (func(), error) {
	if v.cfg.Verify == nil {
		return func() {}, nil
	}
	return v.server.ListenVerifications(v.cfg.Shard, onCall)
}

// run begins a new verification.
func (v *verifications) run(s *state, a modelcall.IncomingCall) {
	h := &Handle{state: s, Rollout: a.Key.Rollout, Attempt: a.Key.Attempt, turn: make(chan struct{}, 1)}
	err := schema.Decode(a.Body, &h.Verification)
	if err == nil && h.Key != a.Key.String() {
		err = fmt.Errorf("key: %q does not match the subject's %s", h.Key, a.Key)
	}
	v.beats.open(s, a)
	if err != nil {
		f := schema.Faultf("verify", schema.CodeInvalid, schema.WhoWorker, "%v", err)
		f.Status = http.StatusBadRequest
		s.answer(schema.FrameFault, f)
		return
	}
	s.sendBeat(false) // before the first operation
	v.bg.Go(func() { v.verify(h) })
}

// verify runs the Verifier and sends its answer.
func (v *verifications) verify(h *Handle) {
	s := h.state
	verdict, err := v.cfg.Verify(s.ctx, h)
	if s.ctx.Err() != nil {
		return // it is not wanted, or another process of this trainer verifies
	}
	if err == nil && verdict == nil {
		err = errors.New("the verifier returned no verdict")
	}
	if err == nil {
		final := *verdict
		final.V = schema.Version
		if err = schema.Validate(&final); err == nil {
			s.answer(schema.FrameFinal, &final)
			return
		}
	}
	var f *schema.Fault
	if !errors.As(err, &f) {
		f = schema.Faultf("verify", schema.CodeNoReward, schema.WhoTrainer, "%v", err)
		f.Status = http.StatusUnprocessableEntity
	}
	fault := *f
	if fault.Status == 0 {
		fault.Status = http.StatusUnprocessableEntity
	}
	v.cfg.Log.Warn().Err(err).Stringer("verification", s.key).Msg("a verification was answered with a fault")
	err = s.refuse(&fault)
	var invalid *schema.InvalidError
	if errors.As(err, &invalid) {
		f := schema.Faultf("verify", schema.CodeInvalid, schema.WhoTrainer, "the fault of the verifier: %v", err)
		f.Status = http.StatusUnprocessableEntity
		err = s.refuse(f)
	}
	if err != nil && !errors.Is(err, ErrOver) {
		v.cfg.Log.Error().Err(err).Stringer("verification", s.key).Msg("a fault could not be sent")
	}
}
