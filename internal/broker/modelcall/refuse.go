package modelcall

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// checkSeq checks the number of a delta or a final of the accepted generation.
func (a *callAttempt) checkSeq(kind schema.FrameKind, h nats.Header) (int, error) {
	value := h.Get(subjects.HeaderSeq)
	n, err := strconv.Atoi(value)
	switch {
	case err != nil || n < 0 || n > maxDeltas:
		return 0, &schema.InvalidError{Field: subjects.HeaderSeq, Value: value, Want: fmt.Sprintf("want a number of 0 to %d", maxDeltas)}
	case kind == schema.FrameFinal && n < a.deltas:
		return 0, &schema.InvalidError{Field: subjects.HeaderSeq, Value: value, Want: fmt.Sprintf("want %d, the number of deltas", a.deltas)}
	default:
		return n, nil
	}
}

// needsGen reports whether frames of this kind name their generation.
func needsGen(kind schema.FrameKind) bool {
	switch kind {
	case schema.FrameAccept, schema.FrameBeat, schema.FrameDelta, schema.FrameFinal, schema.FrameFault:
		return true
	default:
		return false // need_full, or a kind of a later version
	}
}

const (
	// maxDeltas is the largest number of deltas of one answer.
	maxDeltas = 1 << 20
	// maxRefused is the number of refused answers in a row that ends a call.
	maxRefused = 3
)

// refuse tells the trainer once that an answer is refused, and asks for another
// one. The frames of that generation are dropped from now on.
func (a *callAttempt) refuse(gen string, why error) error {
	var fault *schema.Fault
	if !errors.As(why, &fault) || fault.Code != schema.CodeBadAnswer {
		fault = schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "the trainer's answer is refused: %v", why)
		fault.Status = http.StatusBadGateway
	}
	if err := a.fenced(); err != nil {
		return err
	}
	a.client.log.Warn().Str("call", a.key).Str("generation", gen).Msg(fault.Message)
	if !slices.Contains(a.refused, gen) {
		a.refused = append(a.refused, gen)
		clipped := *fault
		clipped.Message = schema.Clip(clipped.Message, 4000)
		body, err := schema.Encode(&clipped)
		if err == nil {
			h := nats.Header{subjects.HeaderKind: {subjects.KindReject}, subjects.HeaderGen: {wire.OneLine(gen)}}
			err = a.client.conn.PublishMsg(&nats.Msg{Subject: a.subject, Header: h, Data: body})
		}
		if err != nil {
			a.client.log.Debug().Err(err).Str("call", a.key).Msg("a refusal was not sent to the trainer")
		}
	}
	a.last, a.refusal, a.gen, a.deltas = fault, fault, "", 0
	a.bad++
	return errAgain
}

// isRefused reports whether a frame belongs to a generation that was refused in
// an earlier round.
func (a *callAttempt) isRefused(m *nats.Msg) bool {
	return len(a.refused) > 0 && slices.Contains(a.refused, m.Header.Get(subjects.HeaderGen)) && m.Header.Get(subjects.HeaderGen) != ""
}

// errGap is errSilent after a gap in Rl-Seq, which a.last names.
var errGap = fmt.Errorf("deltas are missing: %w", errSilent)

// gap asks again because delta n, or a final after n deltas, came too early.
func (a *callAttempt) gap(n int) error {
	a.last = schema.Faultf("call", schema.CodeGap, schema.WhoTrainer, "%s: %d came after %d deltas, so %d are missing and are asked for", subjects.HeaderSeq, n, a.deltas, n-a.deltas)
	a.last.Status = http.StatusBadGateway
	a.client.log.Warn().Str("call", a.key).Str("generation", a.gen).Msg(a.last.Message)
	return errGap
}
