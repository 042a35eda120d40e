package modelcall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// overheard has the events and pieces of a rollout in their order.
type overheard struct {
	told chan string
	end  func()
}

func (b *bench) overhear(t *testing.T, id schema.ID) *overheard {
	t.Helper()
	server, err := modelcall.NewServer(b.nats.Trainer(t, "alpha"), "alpha")
	harness.Must(t, err)
	o := &overheard{told: make(chan string, 1000)}
	ctx, stop := context.WithCancel(t.Context())
	ended, begun := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- server.Overhear(ctx, id, func() { close(begun) }, func(e *schema.Event) {
			switch {
			case e.Phase != nil:
				o.told <- "phase " + e.Phase.Name
			case e.LLM.Call != nil:
				o.told <- "call " + string(e.LLM.Call.Messages[0])
			case e.LLM.Reply != nil && e.LLM.MS > 0:
				o.told <- "answer " + string(e.LLM.Reply.Message)
			case e.LLM.Fault != nil:
				o.told <- "fault " + e.LLM.Fault.Message
			default:
				o.told <- "note " + e.LLM.Note
			}
		}, func(attempt, call int, d *schema.Delta) {
			o.told <- "piece " + schema.Key{Rollout: id, Attempt: attempt, Call: call}.String() + " " + string(d.Delta)
		})
	}()
	<-begun
	o.end = func() {
		stop()
		harness.Must(t, <-ended)
	}
	return o
}

func (o *overheard) next(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-o.told:
		if got != want {
			t.Fatalf("heard %.300q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%q was not heard", want)
	}
}

// Another process of the trainer hears the calls of a rollout, the pieces of their answers
// and the answers, also immediate answers, and answers after a take-over by another worker.
func TestOverhear(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	w1 := b.nats.Worker(t, "w1")
	state := func(worker string, attempt int, expect uint64) uint64 {
		t.Helper()
		seq, err := w1.Messages.Put(t.Context(), subjects.State("alpha-1"), &schema.State{V: 1, ID: "alpha-1", Trainer: "alpha", Status: schema.StatusRunning, Worker: worker, Attempt: attempt}, expect)
		harness.Must(t, err)
		return seq
	}
	seq := state("w1", 1, 0)
	o := b.overhear(t, "alpha-1")
	piece := &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a"}`)}
	large := strings.Repeat("x", 300_000) // it is compressed
	var again4 atomic.Int32
	b.listen(t, func(a modelcall.IncomingCall) {
		switch {
		case a.Cancel, a.Reject != nil:
		case a.Key.Call == 2:
			harness.Must(t, a.Send(b.answer(t, schema.FrameFault, "g1", 0, &schema.Fault{Code: "busy", Message: "busy", Status: http.StatusTooManyRequests})))
			harness.Must(t, a.Send(b.answer(t, schema.FrameFault, "g2", 0, &schema.Fault{Code: "refused", Message: "refused", Status: http.StatusBadRequest})))
		case a.Key.Call == 3:
			harness.Must(t, a.Send(b.answer(t, schema.FrameAccept, "g3", 0, nil)))
		case a.Key.Call == 4:
			harness.Must(t, a.Send(b.answer(t, schema.FrameFinal, fmt.Sprintf("g4-%d", again4.Add(1)), 0, done("y"))))
		default:
			harness.Must(t, a.Send(b.answer(t, schema.FrameDelta, "g1", 0, piece)))
			harness.Must(t, a.Send(b.answer(t, schema.FrameFinal, "g1", 1, done(large))))
		}
	})
	const hi = `call {"role":"user","content":"hi"}`
	other := call(1)
	other.Key = "alpha-2/1/1"
	harness.Must(t, b.caller(time.Minute).Complete(t.Context(), other, quiet)) // is not heard
	harness.Must(t, b.caller(time.Minute).Complete(t.Context(), call(1), quiet))
	o.next(t, hi)
	o.next(t, `piece alpha-1/1/1 {"content":"a"}`)
	o.next(t, "answer "+string(done(large).Message))
	var fault *schema.Fault
	if err := b.caller(time.Minute).Complete(t.Context(), call(2), quiet); !errors.As(err, &fault) {
		t.Fatalf("got %v", err)
	}
	o.next(t, hi)
	o.next(t, "fault refused")
	ctx, cancel := context.WithCancel(t.Context())
	if err := b.caller(time.Minute).Complete(ctx, call(3), func(schema.Frame) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	o.next(t, hi)
	o.next(t, "note the call was cancelled")
	refused := false
	harness.Must(t, b.caller(time.Minute).Complete(t.Context(), call(4), func(f schema.Frame) error {
		if f.Kind != schema.FrameFinal || refused {
			return nil
		}
		refused = true
		return schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "not this one")
	}))
	for _, want := range []string{hi, "answer " + string(done("y").Message), "note not this one", "answer " + string(done("y").Message)} {
		o.next(t, want)
	}

	w2 := b.nats.Worker(t, "w2")
	state("w2", 2, seq)
	w2.Events.Emit(&schema.Event{Type: schema.EventLog, Rollout: "alpha-1", Attempt: 2, Log: &schema.LogEvent{Text: "not for a trainer"}})
	w2.Events.Emit(&schema.Event{Type: schema.EventPhase, Rollout: "alpha-2", Attempt: 1, Phase: &schema.PhaseEvent{Name: "of another rollout"}})
	w2.Events.Emit(&schema.Event{Type: schema.EventPhase, Rollout: "alpha-1", Attempt: 2, Phase: &schema.PhaseEvent{Name: "agent"}})
	o.next(t, "phase agent")
	client, err := modelcall.NewClient(w2, "w2", "i1")
	harness.Must(t, err)
	t.Cleanup(client.Close)
	again := call(1)
	again.Key = "alpha-1/2/1"
	ask := client.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	harness.Must(t, ask.Complete(t.Context(), again, quiet)) // its worker may be heard only after it
	o.next(t, hi)
	again.Key = "alpha-1/2/2"
	again.Messages = []json.RawMessage{[]byte(`{"role":"user","content":"second"}`)}
	if err := ask.Complete(t.Context(), again, quiet); !errors.As(err, &fault) {
		t.Fatalf("got %v", err)
	}
	for got := range o.told {
		if got == "fault refused" {
			break
		}
	}
	o.end()
}

func TestOnlyTheOwnRolloutsAreOverheard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var bad *schema.InvalidError
	if err := b.server.Overhear(t.Context(), "beta-1", func() {}, func(*schema.Event) {}, func(int, int, *schema.Delta) {}); !errors.As(err, &bad) || bad.Field != "id" {
		t.Errorf("got %v", err)
	}
}
