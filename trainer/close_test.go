package trainer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// TestCloseWaitsForACallThatBegins closes the trainer while onCall handles a new
// verification. The end of a call of the earlier attempt blocks onCall.
func TestCloseWaitsForACallThatBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		b := &base{cfg: Config{Log: zerolog.Nop(), AnswerAll: true, Verify: func(context.Context, *Handle) (*schema.Verdict, error) {
			runs.Add(1)
			return nil, errors.New("closed")
		}}}
		b.life, b.stop = context.WithCancelCause(context.Background())
		tr := newTrainer(b, &ledger{})
		tr.attachment.attached.Store(true)
		release := make(chan struct{})
		r := newRollout()
		tr.rollouts.of["alpha-1"] = r
		r.ready, r.attempt = true, 1
		r.calls[1] = &state{end: func(error) { <-release }}
		key := schema.Key{Rollout: "alpha-1", Attempt: 2, Call: 1}
		body, err := schema.Encode(&schema.Verification{V: schema.Version, Key: key.String(), Workdir: "/workspace", LimitMS: 1000})
		if err != nil {
			t.Fatal(err)
		}
		go tr.receiver.onCall(modelcall.IncomingCall{Key: key, Verify: true, Body: body})
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			tr.Close()
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait")
		default:
		}
		close(release)
		<-closed
		if n := runs.Load(); n != 1 {
			t.Errorf("the verifier ran %d times before Close returned", n)
		}
	})
}
