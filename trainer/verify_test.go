package trainer

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// askedOnce is a verification that a worker, played by the test, asked for once.
type askedOnce struct {
	asked modelcall.IncomingCall
	state *state // of the verification
	// frame returns the kind of the next frame to the worker, and its fault if it has one.
	frame func(t *testing.T) (schema.FrameKind, *schema.Fault)
}

// ask makes a trainer with a verifier that returns an error, and asks it to verify.
func ask(t *testing.T, given error) *askedOnce {
	t.Helper()
	nc := testenv.StartNATS(t, "alpha")
	states := make(chan *state, 10)
	b, dialed := newBase(Config{Broker: nc.Trainer(t, "alpha"), Name: "alpha", Log: zerolog.Nop(), AnswerAll: true, Verify: func(_ context.Context, h *Handle) (*schema.Verdict, error) {
		states <- h.state
		return nil, given
	}})
	harness.Must(t, dialed)
	tr := newTrainer(b, &ledger{})
	t.Cleanup(tr.Close)
	tr.attachment.attached.Store(true)
	r := newRollout()
	r.ready, r.attempt = true, 1
	tr.rollouts.of["alpha-1"] = r

	arrived := make(chan modelcall.IncomingCall, 1)
	stop, err := b.server.ListenVerifications(schema.DefaultShard, func(a modelcall.IncomingCall) { arrived <- a })
	harness.Must(t, err)
	t.Cleanup(stop)
	key := schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 1}
	body, err := schema.Encode(&schema.Verification{V: schema.Version, Key: key.String(), Workdir: "/workspace", LimitMS: 1000})
	harness.Must(t, err)
	worker := nc.Raw(t, nc.AdminCreds(), "_INBOX.test")
	reply := subjects.GateInbox("alpha", "w1", "i1", [16]byte{1})
	inbox, err := worker.SubscribeSync(reply)
	harness.Must(t, err)
	harness.Must(t, worker.PublishRequest(subjects.Verification(key, schema.DefaultShard), reply, body))
	out := &askedOnce{asked: <-arrived, frame: func(t *testing.T) (schema.FrameKind, *schema.Fault) {
		t.Helper()
		m, err := inbox.NextMsg(5 * time.Minute)
		harness.Must(t, err)
		kind, f := schema.FrameKind(m.Header.Get(subjects.HeaderKind)), &schema.Fault{}
		if kind == schema.FrameFault {
			harness.Must(t, schema.Decode(m.Data, f))
		}
		return kind, f
	}}
	tr.receiver.onCall(out.asked)
	out.state = <-states
	return out
}

// TestALateRequestAfterARetryableFault: a request that found its verification just before
// the verifier's retryable fault does not accept the ended generation again. Its worker
// would wait for that generation instead of the next one.
func TestALateRequestAfterARetryableFault(t *testing.T) {
	t.Parallel()
	a := ask(t, &schema.Fault{Code: "busy", Status: http.StatusServiceUnavailable})
	if kind, _ := a.frame(t); kind != schema.FrameAccept {
		t.Fatalf("the first frame is %q", kind)
	}
	if kind, f := a.frame(t); kind != schema.FrameFault || f.Code != "busy" {
		t.Fatalf("then %q with %+v", kind, f)
	}
	a.state.attach(a.asked, false)
	harness.Must(t, a.asked.Send(modelcall.Frame{Kind: schema.FrameBeat, Gen: "end"}))
	if kind, _ := a.frame(t); kind != schema.FrameBeat {
		t.Errorf("the late request got %q", kind)
	}
}

// TestAVerifiersFaultThatCannotBeSent: the verification still ends, with a fault that
// names the wrong field.
func TestAVerifiersFaultThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]*schema.Fault{
		"fault.code":    {Message: "no code", Status: http.StatusServiceUnavailable},
		"fault.message": {Code: "tests", Message: strings.Repeat("x", 100<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask(t, given)
			a.frame(t)
			if kind, f := a.frame(t); kind != schema.FrameFault || f.Code != schema.CodeInvalid || f.Status != http.StatusUnprocessableEntity || !strings.Contains(f.Message, name) {
				t.Errorf("got %q with %+v", kind, f)
			}
		})
	}
}
