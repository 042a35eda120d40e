package trainer_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestARefusedAnswerIsReportedAndGeneratedAgain: the trainer hears the reason
// once and gets the call again, under the same key.
func TestARefusedAnswerIsReportedAndGeneratedAgain(t *testing.T) {
	t.Parallel()
	refusals := make(chan trainer.Refusal, 4)
	b := newBench(t, func(c *trainer.Config) { c.Refused = func(r trainer.Refusal) { refusals <- r } })
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Kind == schema.FrameFinal && strings.Contains(string(f.Reply.Message), "one") {
			return schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "content: its pieces differ")
		}
		return nil
	})
	first := next(t, b.trainer)
	if err := first.Reply(text("one")); err != nil {
		t.Fatal(err)
	}
	second := next(t, b.trainer)
	if second.Call.Key != first.Call.Key {
		t.Fatalf("got %s", second.Call.Key)
	}
	if err := second.Reply(text("two")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "two")
	r := <-refusals
	if r.Key.String() != "alpha-1/1/1" || r.Gen == "" || r.Fault.Code != schema.CodeBadAnswer || !strings.Contains(r.Fault.Message, "content") {
		t.Fatalf("got %+v", r)
	}
	if n := b.trainer.Refusals(); n != 1 || len(refusals) != 0 {
		t.Fatalf("%d refusals were counted, %d more reported", n, len(refusals))
	}
}

// TestThreeRefusedAnswersEndTheCall has a worker that refuses pieces of streamed
// answers.
func TestThreeRefusedAnswersEndTheCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Kind == schema.FrameDelta {
			return schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "delta: odd")
		}
		return nil
	})
	for range 3 {
		p := next(t, b.trainer)
		if err := p.Stream().Delta(&schema.Delta{Delta: []byte(`{"content":"a"}`)}); err != nil {
			t.Fatal(err)
		}
		<-p.Context().Done() // the refusal ends the generation
		if err := p.Reply(text("a")); !errors.Is(err, trainer.ErrOver) {
			t.Fatalf("got %v", err)
		}
	}
	var f *schema.Fault
	if a := <-got; !errors.As(a.err, &f) || f.Code != schema.CodeBadAnswer || f.Status != http.StatusBadGateway && f.Status != 0 {
		t.Fatalf("got %v", a.err)
	}
}

// TestAFaultThatCannotBeSent is a refused answer for the worker, which ends the call after
// three.
func TestAFaultThatCannotBeSent(t *testing.T) {
	t.Parallel()
	wrong := &schema.Fault{Message: "no code", Status: http.StatusBadRequest}
	for _, b := range []*bench{newBench(t), newBench(t, func(c *trainer.Config) { c.Check = func(*schema.Call) *schema.Fault { return wrong } })} {
		serve(t, b.trainer, func(context.Context, *trainer.Call) (*schema.Reply, error) { return nil, wrong })
		var got *schema.Fault
		enough := errors.New("enough")
		a := <-b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
			if got = f.Fault; got != nil {
				return enough
			}
			return nil
		})
		if !errors.Is(a.err, enough) || got.Code != schema.CodeBadAnswer || got.Status != http.StatusBadGateway || !strings.Contains(got.Message, "fault.code") {
			t.Errorf("got %v, %+v", a.err, got)
		}
	}
}
