package modelcall_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestACancelEndsTheReadOfItsCall cancels a call while the trainer's side waits for its body
// from the object store. The call is not handled, and a later one is.
func TestACancelEndsTheReadOfItsCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := testenv.NewProxy(t, strings.TrimPrefix(b.nats.URL(), "nats://"))
	store, err := broker.Dial(t.Context(), broker.Config{URL: p.URL(), Creds: b.nats.TrainerCreds("alpha"), Inbox: broker.InboxFor("trainer", "alpha"), Log: zerolog.Nop()})
	harness.Must(t, err)
	t.Cleanup(store.Close)
	b.server.ReadOver(store)
	asked := func() uint64 { return store.BulkConn().Stats().OutMsgs } //nolint:forbidigo // this package is under broker
	full, final := b.answer(t, schema.FrameNeedFull, "", 0, nil), b.answer(t, schema.FrameFinal, "g1", 0, done("ok"))
	cancelled := make(chan struct{})
	b.listen(t, func(a modelcall.IncomingCall) {
		switch {
		case a.Cancel:
			close(cancelled)
		case len(a.Body) < 1<<20: // the new part alone
			_ = a.Send(full)
		case a.Key.Call == 2:
			t.Error("a call came after its cancel")
		default:
			_ = a.Send(final)
		}
	})
	large := func(number int) schema.Call {
		c := call(number)
		c.Messages = []json.RawMessage{json.RawMessage(`"` + base64.StdEncoding.EncodeToString(harness.Noise(9<<20)) + `"`), c.Messages[0]}
		c.Shares = schema.Shares{Base: 1, Keep: 1}
		return c
	}

	p.Set(false, true, 0) // the store does not answer
	before := asked()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone, ended := errors.New("the agent has ended"), make(chan error, 1)
	go func() { ended <- b.caller(5*time.Minute).Complete(ctx, large(2), quiet) }()
	harness.Eventually(t, "the read of the body", 5*time.Minute, func() bool { return asked() > before })
	cancel(gone)
	if err := <-ended; !errors.Is(err, gone) {
		t.Fatalf("got %v", err)
	}
	<-cancelled
	p.Heal()
	harness.Must(t, b.caller(5*time.Minute).Complete(t.Context(), large(3), quiet))
}
