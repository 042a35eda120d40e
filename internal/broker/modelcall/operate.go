package modelcall

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// ListenVerifications is Listen for verifications.
func (s *Server) ListenVerifications(shard string, handle func(IncomingCall)) (stop func(), err error) {
	return s.listen(subjects.VerificationsOf(s.tid, shard), subjects.ParseVerification, IncomingCall{Verify: true}, handle)
}

const (
	// operationWithin is the time without any answer after which an operation is
	// requested again. It is above operationBeat.
	operationWithin = 2 * operationBeat
	// operationAgain is the delay after a request that no worker received.
	operationAgain = 500 * time.Millisecond
)

// Operate asks the worker of a verification for an operation of the generation
// gen, until it has the result. Operations of a generation have the numbers 1, 2,
// … and run one after the other. Errors are a *schema.Fault of the worker, an
// *schema.InvalidError, a *broker.TooLargeError, a *broker.FullError, or the
// context's cause.
func (s *Server) Operate(ctx context.Context, a IncomingCall, gen string, number int, op *schema.Operation) (r schema.OperationResult, err error) {
	op.V = schema.Version
	body, err := s.EncodeFrame(ctx, op)
	if err != nil {
		return r, err
	}
	h := nats.Header{subjects.HeaderKind: {string(schema.FrameOperation)}, subjects.HeaderGen: {gen}, subjects.HeaderSeq: {strconv.Itoa(number)}}
	maps.Copy(h, body.header)
	for {
		op, cancel := context.WithTimeout(ctx, operationWithin)
		m, err := s.b.CallConn().RequestMsgWithContext(op, &nats.Msg{Subject: a.reply, Header: h, Data: body.data})
		cancel()
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		if err != nil { // the worker or the server is away, or the answer was lost
			if !errors.Is(err, context.DeadlineExceeded) {
				if err := wire.Pause(ctx, operationAgain); err != nil {
					return r, err
				}
			}
			continue
		}
		switch schema.FrameKind(m.Header.Get(subjects.HeaderKind)) {
		case schema.FrameFinal:
			data, err := s.unpack(ctx, subjects.ArtifactsBucket(s.tid), m.Header, m.Data)
			if err == nil {
				err = schema.Decode(data, &r)
			}
			return r, err
		case schema.FrameFault:
			f := &schema.Fault{}
			if err := schema.Decode(m.Data, f); err != nil {
				return r, err
			}
			if f.Status == 0 {
				f.Status = http.StatusInternalServerError
			}
			return r, f
		}
	}
}
