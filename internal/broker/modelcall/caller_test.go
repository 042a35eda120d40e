package modelcall_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func call(n int) schema.Call {
	return schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: n}.String(), Tag: schema.TagAgent, Dialect: "chat",
		Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}
}

func (b *bench) caller(wait time.Duration) *modelcall.Caller {
	r := harness.Request("alpha-1").WithDefaults()
	r.Gate.WaitMS = wait.Milliseconds()
	return b.client.Caller(r, nil)
}

func (b *bench) answer(t testing.TB, kind schema.FrameKind, gen string, seq int, m schema.Message) modelcall.Frame {
	t.Helper()
	f := modelcall.Frame{Kind: kind, Gen: gen, Seq: seq}
	if m != nil {
		body, err := b.server.EncodeFrame(t.Context(), m)
		harness.Must(t, err)
		f.Body = body
	}
	return f
}

func (b *bench) listen(t testing.TB, handle func(modelcall.IncomingCall)) (stop func()) {
	t.Helper()
	stop, err := b.server.Listen("", handle)
	harness.Must(t, err)
	t.Cleanup(stop)
	return stop
}

func done(text string) *schema.Reply {
	return &schema.Reply{V: 1, Message: json.RawMessage(`{"role":"assistant","content":"` + text + `"}`), FinishReason: "stop"}
}

func quiet(schema.Frame) error { return nil }

// TestDeltasSayWhetherMoreWait checks that Frame.More is true only if the next
// delta has arrived already. Otherwise the gate has to flush at once.
func TestDeltasSayWhetherMoreWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	piece := &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a"}`)}
	sent := make(chan struct{})
	b.listen(t, func(a modelcall.IncomingCall) {
		if a.Key.Call == 2 {
			<-sent
			harness.Must(t, a.Send(b.answer(t, schema.FrameFinal, "g2", 0, done("b"))))
			return
		}
		for _, f := range []modelcall.Frame{
			b.answer(t, schema.FrameAccept, "g1", 0, nil), b.answer(t, schema.FrameDelta, "g1", 0, piece), b.answer(t, schema.FrameDelta, "g1", 1, piece),
			b.answer(t, schema.FrameBeat, "g1", 0, nil), b.answer(t, schema.FrameDelta, "g1", 2, piece), b.answer(t, schema.FrameDelta, "g1", 0, piece),
			b.answer(t, schema.FrameDelta, "g1", 3, piece), b.answer(t, schema.FrameFinal, "g1", 4, done("aaaa")),
		} {
			harness.Must(t, a.Send(f))
		}
		close(sent)
	})
	var more []bool
	err := b.caller(time.Minute).Complete(t.Context(), call(1), func(f schema.Frame) error {
		switch f.Kind {
		case schema.FrameAccept: // the answer to a later call arrives after the other frames
			err := b.caller(time.Minute).Complete(t.Context(), call(2), quiet)
			return err
		case schema.FrameDelta:
			more = append(more, f.More)
		}
		return nil
	})
	harness.Must(t, err)
	// A beat follows the second delta, and a repeated delta follows the third.
	if want := []bool{true, false, false, false}; !slices.Equal(more, want) {
		t.Errorf("more: %v, want %v", more, want)
	}
}

func TestCallIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.listen(t, func(a modelcall.IncomingCall) {
		harness.Must(t, a.Send(b.answer(t, schema.FrameAccept, "g1", 0, nil)))
		harness.Must(t, a.Send(b.answer(t, schema.FrameDelta, "g1", 0, &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a"}`)})))
		harness.Must(t, a.Send(b.answer(t, schema.FrameDelta, "other", 1, &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"x"}`)})))
		harness.Must(t, a.Send(b.answer(t, schema.FrameFinal, "g1", 1, done("a"))))
	})
	var kinds []string
	r, err := testenv.Complete(t.Context(), b.caller(time.Minute), call(1), func(f schema.Frame) error {
		kinds = append(kinds, string(f.Kind)+":"+f.Gen)
		return nil
	})
	harness.Must(t, err)
	if string(r.Message) != `{"role":"assistant","content":"a"}` || strings.Join(kinds, " ") != "accept:g1 delta:g1 final:g1" {
		t.Fatalf("got %s, %v", r.Message, kinds)
	}
}

func TestCallWithoutATrainerEndsWithinItsBudget(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	absent := 0
	err := b.caller(600*time.Millisecond).Complete(t.Context(), call(1), func(f schema.Frame) error {
		if f.Kind == schema.FrameAbsent {
			absent++
		}
		return nil
	})
	var none *schema.Fault
	if !errors.As(err, &none) || none.Code != schema.CodeNoTrainer || none.Status != http.StatusServiceUnavailable || absent == 0 {
		t.Fatalf("got %v after %d absences", err, absent)
	}
}

func TestCallSurvivesATrainerThatComesLate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	come := make(chan struct{})
	go func() {
		<-come
		stop, err := b.server.Listen("", func(a modelcall.IncomingCall) { _ = a.Send(b.answer(t, schema.FrameFinal, "g1", 0, done("late"))) })
		if err == nil {
			t.Cleanup(stop)
		}
	}()
	first := true
	r, err := testenv.Complete(t.Context(), b.caller(time.Minute), call(1), func(f schema.Frame) error {
		if f.Kind == schema.FrameAbsent && first {
			first = false
			close(come)
		}
		return nil
	})
	harness.Must(t, err)
	if !strings.Contains(string(r.Message), "late") || first {
		t.Fatalf("got %s", r.Message)
	}
}

func TestRetryableFaultIsAskedAgainUnderTheSameKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var asked atomic.Int32
	b.listen(t, func(a modelcall.IncomingCall) {
		if a.Key.String() != "alpha-1/1/1" {
			t.Errorf("key %s", a.Key)
		}
		switch asked.Add(1) {
		case 1:
			_ = a.Send(b.answer(t, schema.FrameFault, "g1", 0, &schema.Fault{Code: "busy", Message: "later", Status: 429, RetryAfterMS: 5}))
		case 2:
			_ = a.Send(b.answer(t, schema.FrameNeedFull, "", 0, nil))
		default:
			_ = a.Send(b.answer(t, schema.FrameFinal, "g2", 0, done("ok")))
		}
	})
	err := b.caller(time.Minute).Complete(t.Context(), call(1), quiet)
	harness.Must(t, err)
	if asked.Load() != 3 {
		t.Fatalf("asked %d times, want 3", asked.Load())
	}
}

func TestOnlyNewMessagesAreSentUnlessTheBaseIsLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var bodies []schema.Call
	b.listen(t, func(a modelcall.IncomingCall) {
		var c schema.Call
		harness.Must(t, schema.Decode(a.Body, &c))
		if bodies = append(bodies, c); len(bodies) == 1 {
			_ = a.Send(b.answer(t, schema.FrameNeedFull, "", 0, nil))
			return
		}
		_ = a.Send(b.answer(t, schema.FrameFinal, "g1", 0, done("ok")))
	})
	c := call(4)
	c.Messages = append(c.Messages, json.RawMessage(`{"role":"assistant"}`), json.RawMessage(`{"role":"tool"}`))
	c.Tools = json.RawMessage(`[{}]`)
	c.Shares = schema.Shares{Base: 3, Keep: 2, Tools: true}
	err := b.caller(time.Minute).Complete(t.Context(), c, quiet)
	harness.Must(t, err)
	if d := bodies[0]; d.Base != 3 || d.Keep != 2 || len(d.Messages) != 1 || d.Tools != nil {
		t.Errorf("first came %+v", d)
	}
	if f := bodies[1]; f.Base != 0 || f.Keep != 0 || len(f.Messages) != 3 || string(f.Tools) != "[{}]" || f.Key != c.Key {
		t.Errorf("then came %+v", f)
	}
}

func TestFinalFaultReachesTheCaller(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.listen(t, func(a modelcall.IncomingCall) {
		_ = a.Send(b.answer(t, schema.FrameFault, "g1", 0, &schema.Fault{Code: schema.CodeTooLarge, Message: "too long", Status: 413}))
	})
	err := b.caller(time.Minute).Complete(t.Context(), call(1), quiet)
	var f *schema.Fault
	if !errors.As(err, &f) || f.Status != 413 {
		t.Fatalf("got %v", err)
	}
}

func TestLostDeltaIsAskedForAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	delta := func(s string) *schema.Delta {
		return &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"` + s + `"}`)}
	}
	var resumes atomic.Int32
	b.listen(t, func(a modelcall.IncomingCall) {
		if a.ResumeGen == "g1" {
			resumes.Add(1)
			_ = a.Send(b.answer(t, schema.FrameDelta, "g1", a.Resume, delta("two")))
			_ = a.Send(b.answer(t, schema.FrameDelta, "g1", a.Resume+1, delta("three")))
			_ = a.Send(b.answer(t, schema.FrameFinal, "g1", 3, done("onetwothree")))
			return
		}
		_ = a.Send(b.answer(t, schema.FrameDelta, "g1", 0, delta("one")))
		_ = a.Send(b.answer(t, schema.FrameDelta, "g1", 2, delta("three")))
	})
	var got string
	err := b.caller(time.Minute).Complete(t.Context(), call(1), func(f schema.Frame) error {
		if f.Kind == schema.FrameDelta {
			got += string(f.Delta.Delta)
		}
		return nil
	})
	harness.Must(t, err)
	if got != `{"content":"one"}{"content":"two"}{"content":"three"}` || resumes.Load() != 1 {
		t.Fatalf("got %s after %d resumes", got, resumes.Load())
	}
}

// TestEndingACallTellsTheTrainer, which has accepted the call, or may do so later.
func TestEndingACallTellsTheTrainer(t *testing.T) {
	t.Parallel()
	for name, accepts := range map[string]bool{"accepted": true, "not accepted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			cancelled := make(chan struct{})
			gone := errors.New("the agent has ended")
			ctx, cancel := context.WithCancelCause(t.Context())
			b.listen(t, func(a modelcall.IncomingCall) {
				switch {
				case a.Cancel:
					close(cancelled)
				case accepts:
					_ = a.Send(b.answer(t, schema.FrameAccept, "g1", 0, nil))
				default:
					cancel(gone)
				}
			})
			err := b.caller(time.Minute).Complete(ctx, call(1), func(f schema.Frame) error {
				if f.Kind == schema.FrameAccept {
					cancel(gone)
				}
				return nil
			})
			if !errors.Is(err, gone) {
				t.Fatalf("got %v", err)
			}
			<-cancelled
		})
	}
}

func TestCallThatDoesNotFitIsTheAgentsFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := call(1)
	c.Messages = append(c.Messages, json.RawMessage(`"`+strings.Repeat("x", schema.MaxBody)+`"`))
	err := b.caller(time.Minute).Complete(t.Context(), c, quiet)
	var large *schema.Fault
	if !errors.As(err, &large) || large.Code != schema.CodeTooLarge || large.Status != http.StatusRequestEntityTooLarge || !strings.Contains(large.AgentMessage, strconv.Itoa(schema.MaxBody)) {
		t.Fatalf("got %v", err)
	}
}

// TestLargeBodiesTravel sends large calls and replies. They travel compressed,
// or through the object store if they are still too large for a message.
func TestLargeBodiesTravel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, text := range map[string]string{"text": strings.Repeat("some text ", 1<<20), "noise": base64.StdEncoding.EncodeToString(harness.Noise(9 << 20))} {
		c := call(map[string]int{"text": 1, "noise": 2}[name])
		c.Messages = append(c.Messages, json.RawMessage(`"`+text+`"`))
		got := make(chan schema.Call, 1)
		large := done("ok")
		large.TopLogprobs = json.RawMessage(`"` + text + `"`)
		accept, final := b.answer(t, schema.FrameAccept, "g1", 0, nil), b.answer(t, schema.FrameFinal, "g1", 0, large)
		stop := b.listen(t, func(a modelcall.IncomingCall) {
			_ = a.Send(accept)
			var c schema.Call
			if err := schema.Decode(a.Body, &c); err != nil {
				t.Error(err)
			}
			select {
			case got <- c:
			default: // repeated calls of a slow machine
			}
			_ = a.Send(final)
		})
		reply, err := testenv.Complete(t.Context(), b.caller(5*time.Minute), c, quiet)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if string(reply.TopLogprobs) != `"`+text+`"` {
			t.Errorf("%s: another reply came", name)
		}
		if back := <-got; len(back.Messages) != len(c.Messages) || string(back.Messages[1]) != string(c.Messages[1]) {
			t.Errorf("%s: another call came", name)
		}
		stop()
	}
	js, err := jetstream.New(b.nats.Raw(t, b.nats.AdminCreds(), "_INBOX.reader"))
	harness.Must(t, err)
	for _, bucket := range []string{subjects.ArtifactsBucket("alpha"), subjects.TasksBucket("alpha")} {
		stream, err := js.Stream(t.Context(), subjects.ObjectStream(bucket))
		harness.Must(t, err)
		m, err := stream.GetMsg(t.Context(), 1)
		harness.Must(t, err)
		if m.Header.Get(jetstream.MsgTTLHeader) == "" {
			t.Errorf("what was put into %s is kept for ever", bucket)
		}
	}
}

func TestReplyWithWrongLengthsIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reply := done("ok")
	reply.CompletionIDs, reply.Logprobs = schema.PackTokenIDs([]int32{1}), schema.PackLogprobs([]float32{1})
	good, err := schema.Encode(reply)
	harness.Must(t, err)
	one := string([]byte{0xc4, 4, 0, 0, 0x80, 0x3f}) // the packed form of the one log-prob
	bad := strings.Replace(string(good), one, string([]byte{0xc4, 8, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f}), 1)
	nc := b.nats.Raw(t, b.nats.AdminCreds(), "_INBOX.responder")
	_, err = nc.Subscribe("rollout.*.llm.>", func(m *nats.Msg) {
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{subjects.HeaderKind: {string(schema.FrameFinal)}, subjects.HeaderGen: {"g1"}, subjects.HeaderSeq: {"0"}}, Data: []byte(bad)})
	})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	err = b.caller(time.Minute).Complete(t.Context(), call(1), quiet)
	var f *schema.Fault
	if !errors.As(err, &f) || !strings.Contains(f.Message, "logprobs") || f.Who != schema.WhoTrainer {
		t.Fatalf("got %v", err)
	}
}

func BenchmarkCall32KB(b *testing.B) {
	env := newBench(b)
	env.listen(b, func(a modelcall.IncomingCall) { _ = a.Send(env.answer(b, schema.FrameFinal, "g1", 0, done("ok"))) })
	c := call(1)
	c.Messages = []json.RawMessage{json.RawMessage(`"` + strings.Repeat("x", 32<<10) + `"`)}
	caller := env.caller(time.Minute)
	b.SetBytes(32 << 10)
	for b.Loop() {
		if err := caller.Complete(b.Context(), c, quiet); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRawRequest32KB is the lower bound for a call: a bare NATS request and
// reply with the same bytes over the same server.
func BenchmarkRawRequest32KB(b *testing.B) {
	env := newBench(b)
	responder := env.nats.Raw(b, env.nats.AdminCreds(), "_INBOX.responder")
	_, err := responder.Subscribe("raw.echo", func(m *nats.Msg) { _ = m.Respond([]byte("ok")) })
	harness.Must(b, err)
	harness.Must(b, responder.Flush())
	nc := env.nats.Raw(b, env.nats.AdminCreds(), "_INBOX.asker")
	body := []byte(strings.Repeat("x", 32<<10))
	b.SetBytes(32 << 10)
	for b.Loop() {
		if _, err := nc.Request("raw.echo", body, time.Second); err != nil {
			b.Fatal(err)
		}
	}
}
