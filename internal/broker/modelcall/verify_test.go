package modelcall_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// verifying is a verification in progress, with its trainer played by the test.
type verifying struct {
	b     *bench
	nc    *nats.Conn // of the trainer
	asked *nats.Msg
	call  *nats.Subscription
	ran   chan *schema.Operation
	done  chan error
	end   context.CancelFunc
}

func startVerifying(t *testing.T, b *bench) *verifying {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(b.nats.TrainerCreds("alpha"))
	harness.Must(t, err)
	nc, err := nats.Connect(b.nats.URL(), key, nats.CustomInboxPrefix(broker.InboxFor("trainer", "alpha")))
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	v := &verifying{b: b, nc: nc, ran: make(chan *schema.Operation, 100), done: make(chan error, 1)}
	v.call, err = nc.SubscribeSync(subjects.VerificationsOf("alpha", ""))
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	ctx, end := context.WithCancel(t.Context())
	v.end = end
	t.Cleanup(end)
	go func() {
		verdict, err := b.client.Caller(harness.Request("alpha-1").WithDefaults(), nil).Verify(ctx, schema.Verification{V: 1, Key: "alpha-1/1/1", Workdir: "/w"},
			func(schema.Frame) error { return nil }, func(ctx context.Context, _ int, op *schema.Operation) (schema.OperationResult, error) {
				v.ran <- op
				if op.Path == "slow" {
					<-ctx.Done()
					return schema.OperationResult{}, context.Cause(ctx)
				}
				return schema.OperationResult{V: 1, Data: []byte(op.Path)}, nil
			})
		if err == nil && (verdict.Reward == nil || *verdict.Reward != 0.5) {
			err = errors.New("it has another verdict")
		}
		v.done <- err
	}()
	v.asked, err = v.call.NextMsg(10 * time.Second)
	harness.Must(t, err)
	return v
}

func (v *verifying) frame(t *testing.T, kind schema.FrameKind, gen string, m schema.Message) {
	t.Helper()
	h := nats.Header{subjects.HeaderKind: {string(kind)}, subjects.HeaderGen: {gen}, subjects.HeaderSeq: {"0"}}
	var data []byte
	if m != nil {
		var err error
		data, err = schema.Encode(m)
		harness.Must(t, err)
	}
	harness.Must(t, v.nc.PublishMsg(&nats.Msg{Subject: v.asked.Reply, Header: h, Data: data}))
}

// operate sends one request for an operation, and returns the kind of the answer
// and the fault or the data in it.
func (v *verifying) operate(t *testing.T, gen, number, path string) (kind, text string) {
	t.Helper()
	data, err := schema.Encode(&schema.Operation{V: 1, Do: schema.DoRead, Path: path})
	harness.Must(t, err)
	return v.request(t, gen, number, data)
}

func (v *verifying) request(t *testing.T, gen, number string, data []byte) (kind, text string) {
	t.Helper()
	h := nats.Header{subjects.HeaderKind: {string(schema.FrameOperation)}, subjects.HeaderGen: {gen}, subjects.HeaderSeq: {number}}
	m, err := v.nc.RequestMsg(&nats.Msg{Subject: v.asked.Reply, Header: h, Data: data}, 10*time.Second)
	harness.Must(t, err)
	switch kind = m.Header.Get(subjects.HeaderKind); kind {
	case string(schema.FrameFinal):
		var r schema.OperationResult
		harness.Must(t, schema.Decode(m.Data, &r))
		return kind, string(r.Data)
	case string(schema.FrameFault):
		var f schema.Fault
		harness.Must(t, schema.Decode(m.Data, &f))
		return kind, f.Code
	default:
		return kind, ""
	}
}

// TestOperationsOfAVerification checks the rules of the numbers and generations of
// operations.
func TestOperationsOfAVerification(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	v := startVerifying(t, newBench(t))
	v.frame(t, schema.FrameAccept, "g1", nil)
	expect := func(what, kind, text, wantKind, wantText string) {
		t.Helper()
		if kind != wantKind || text != wantText {
			t.Errorf("%s: got %s %q, want %s %q", what, kind, text, wantKind, wantText)
		}
	}
	check := func(what, gen, number, path, wantKind, wantText string) {
		t.Helper()
		kind, text := v.operate(t, gen, number, path)
		expect(what, kind, text, wantKind, wantText)
	}
	check("the first", "g1", "1", "a", "final", "a")
	check("a repeated one", "g1", "1", "other", "final", "a")
	check("one of another generation", "g2", "1", "b", "fault", schema.CodeOver)
	check("no number", "g1", "x", "b", "fault", schema.CodeInvalid)
	check("the next", "g1", "5", "e", "final", "e")
	check("an old number", "g1", "4", "d", "fault", schema.CodeOver)
	check("one too many", "g1", "10001", "z", "fault", schema.CodeCallCap)
	kind, text := v.request(t, "g1", "6", []byte("x"))
	expect("no message", kind, text, "fault", schema.CodeInvalid)
	data, err := schema.Encode(&schema.Operation{V: 2, Do: schema.DoList})
	harness.Must(t, err)
	kind, text = v.request(t, "g1", "7", data)
	expect("another version", kind, text, "fault", schema.CodeInvalid)
	check("a slow one", "g1", "8", "slow", "beat", "") // it runs: the trainer requests it again
	check("one that ends it", "g1", "9", "f", "final", "f")
	var ran []string
	for len(v.ran) > 0 {
		ran = append(ran, (<-v.ran).Path)
	}
	if len(ran) != 4 || ran[0] != "a" || ran[1] != "e" || ran[2] != "slow" || ran[3] != "f" {
		t.Errorf("these ran: %q", ran)
	}
	half := 0.5
	v.frame(t, schema.FrameFinal, "g1", &schema.Verdict{V: 1, Reward: &half})
	harness.Must(t, <-v.done)
	check("one after the verdict", "g1", "10", "g", "fault", schema.CodeOver)
}

// TestANewGenerationOfAVerification is the trainer's next process: it gets the same
// verification, and the operations of the former one end.
func TestANewGenerationOfAVerification(t *testing.T) {
	t.Parallel()
	v := startVerifying(t, newBench(t))
	v.frame(t, schema.FrameAccept, "g1", nil)
	slow := make(chan string, 1)
	go func() {
		kind, _ := v.operate(t, "g1", "1", "slow")
		slow <- kind
	}()
	<-v.ran
	v.frame(t, schema.FrameFault, "g1", &schema.Fault{Code: "restarting", Message: "later", Status: 503})
	again, err := v.call.NextMsg(10 * time.Second)
	harness.Must(t, err)
	if again.Reply != v.asked.Reply {
		t.Errorf("the call was repeated with the reply subject %s", again.Reply)
	}
	v.frame(t, schema.FrameAccept, "g2", nil)
	if kind, text := v.operate(t, "g2", "1", "b"); kind != "final" || text != "b" {
		t.Errorf("got %s %s", kind, text)
	}
	if kind := <-slow; kind == "final" {
		t.Errorf("the operation of the former generation was answered with %s", kind)
	}
	v.end()
	if err := <-v.done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	m, err := v.call.NextMsg(10 * time.Second) // the trainer gets a message
	harness.Must(t, err)
	if m.Header.Get(subjects.HeaderKind) != subjects.KindCancel {
		t.Errorf("got %v", m.Header)
	}
}
