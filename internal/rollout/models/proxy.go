package models

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

// Upstream is a model server that this worker may call, for requests of mode
// transparent_proxy and black_box. Requests refer to it by name; URL, key and
// permitted trainers are in this worker's configuration.
type Upstream struct {
	Name     string
	Trainers []string // permitted trainers; empty: all
	// Answer sends a call to the upstream and returns the whole answer. It emits
	// the pieces of the answer before, if emit is not nil and the upstream streams.
	// It returns the same errors as the function of trainer.Serve.
	Answer func(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error)
	// Look returns the reason why it can answer no call; nil: it may answer.
	Look func(ctx context.Context) error
	// Lines bounds the log lines about its failures, of all rollouts together; nil: none
	// is logged.
	Lines *quiet.Lines
	// URL (without /v1) and Key are passed to an agent of a black box.
	URL, Key string
}

// findUpstream returns the upstream that a request names, if its trainer may use
// it.
func findUpstream(all []Upstream, name, trainer string) (*Upstream, error) {
	i := slices.IndexFunc(all, func(u Upstream) bool { return u.Name == name })
	if i < 0 || len(all[i].Trainers) > 0 && !slices.Contains(all[i].Trainers, trainer) {
		return nil, &schema.InvalidError{Field: "model.upstream", Value: name, Want: "an upstream that this worker's configuration opens to trainer " + trainer}
	}
	return &all[i], nil
}

// proxy is a gate.Model that calls an upstream in place of the trainer. It
// retries as the broker does for a trainer.
type proxy struct {
	up     *Upstream
	wait   time.Duration // maximum time without an answer
	stream bool          // the agent may read an answer while it is generated
	held   func(ctx context.Context) (held bool, changed <-chan struct{})
	log    zerolog.Logger
}

// heldBeat is the interval of the frames that report a held call.
const heldBeat = 5 * time.Second

// await waits while the trainer holds the rollout. The agent's clock stands
// still meanwhile.
func (p proxy) await(ctx context.Context, frames func(schema.Frame) error) error {
	for p.held != nil {
		held, changed := p.held(ctx)
		if !held {
			return nil
		}
		if err := frames(schema.Frame{Kind: schema.FrameBeat, Held: true}); err != nil {
			return err
		}
		beat := time.NewTimer(heldBeat)
		select {
		case <-changed:
		case <-beat.C:
		case <-ctx.Done():
		}
		beat.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// isRefused reports whether an error of frames refuses an answer, so that the upstream
// is asked again.
func isRefused(err error) bool {
	var f *schema.Fault
	return errors.As(err, &f) && f.Code == schema.CodeBadAnswer
}

// ask calls the upstream once, and passes its answer on. over means that the call has
// ended and must not be retried.
func (p proxy) ask(ctx context.Context, c *schema.Call, gen string, frames func(schema.Frame) error) (over bool, err error) {
	pass := func(f schema.Frame) error {
		err := frames(f)
		over = err != nil && !isRefused(err)
		return err
	}
	var emit func(*schema.Delta) error
	if p.stream && c.Stream {
		emit = func(d *schema.Delta) error { return pass(schema.Frame{Kind: schema.FrameDelta, Gen: gen, Delta: d}) }
	}
	reply, err := p.up.Answer(ctx, c, emit)
	if err != nil && ctx.Err() == nil && p.up.Lines != nil {
		if skipped, speak := p.up.Lines.Speak(err.Error(), time.Now()); speak {
			p.log.Warn().Err(err).Str("upstream", p.up.Name).Str("call", c.Key).Int("repeated", skipped).Msg("an upstream did not answer a call")
		}
	}
	if err == nil {
		reply.V = schema.Version
		err = pass(schema.Frame{Kind: schema.FrameFinal, Gen: gen, Reply: reply})
	}
	return over || err == nil, err
}

// Complete implements gate.Model.
func (p proxy) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error {
	var absent time.Time // when the upstream first failed to answer
	for try := 0; ; try++ {
		if err := p.await(ctx, frames); err != nil {
			return err
		}
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		gen := hex.EncodeToString(random[:])
		if err := frames(schema.Frame{Kind: schema.FrameAccept, Gen: gen}); err != nil {
			return err
		}
		over, err := p.ask(ctx, &c, gen, frames)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if over {
			return err
		}
		var fault *schema.Fault
		if !errors.As(err, &fault) {
			fault = schema.Faultf("call", schema.CodeInternal, schema.WhoTrainer, "%v", err)
			fault.Status = http.StatusInternalServerError
		}
		if !schema.RetryableStatus(fault.Status) {
			return fault
		}
		if absent.IsZero() {
			absent = time.Now()
		}
		if time.Since(absent) > p.wait {
			none := schema.Faultf("call", schema.CodeNoTrainer, schema.WhoTrainer, "upstream %s did not answer for %s: %v", p.up.Name, p.wait, fault)
			none.Status = http.StatusServiceUnavailable
			return none
		}
		if err := frames(schema.Frame{Kind: schema.FrameAbsent, Fault: fault, Upstream: p.up.Name}); err != nil {
			return err
		}
		pause := max(time.Duration(fault.RetryAfterMS)*time.Millisecond, min(time.Second<<min(try, 4), 10*time.Second)/2)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
