package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestARequestOfAnotherVersionGetsAResult: the fault of the result names the field.
func TestARequestOfAnotherVersionGetsAResult(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := harness.Request("alpha-1")
	r.V = 2
	b.Submit(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	taken := make(chan error, 1)
	go func() {
		_, err := b.Worker.Take(ctx)
		taken <- err
	}()
	var res schema.Result
	harness.Eventually(t, "the result", 5*time.Minute, func() (there bool) {
		var err error
		res, err = b.Trainer.Records.Result(t.Context(), r.ID)
		return err == nil
	})
	cancel()
	if err := <-taken; !errors.Is(err, context.Canceled) || res.Status != schema.StatusFailed || res.Fault == nil || !strings.HasPrefix(res.Fault.Message, "v: ") {
		t.Fatalf("got %v, %+v", err, res)
	}
}

// TestARequestWithAForeignIDIsAnswered: the answer comes on the subject of the
// request's trainer. No result can be written, since the id is another trainer's
// or is missing.
func TestARequestWithAForeignIDIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hints := make(chan schema.Hint, 4)
	stop, err := b.Trainer.Results.Hints(func(h schema.Hint) { hints <- h })
	harness.Must(t, err)
	t.Cleanup(stop)
	theirs := make(chan schema.Hint, 4)
	stop, err = b.NewTrainer(t, "beta").Results.Hints(func(h schema.Hint) { theirs <- h })
	harness.Must(t, err)
	t.Cleanup(stop)
	foreign, err := schema.Encode(&schema.Request{ID: "beta-1", Trainer: "beta", Task: schema.Task{Name: "t", Instruction: "x"}, Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "dummy"}})
	harness.Must(t, err)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	ctx, cancel := context.WithCancel(t.Context())
	taken := make(chan error, 1)
	go func() {
		_, err := b.Worker.Take(ctx)
		taken <- err
	}()
	for _, c := range []struct {
		body []byte
		id   schema.ID
	}{{foreign, "beta-1"}, {[]byte("hello"), ""}} {
		harness.Must(t, nc.Publish(subjects.Request(2, "alpha"), c.body))
		select {
		case h := <-hints:
			if h.ID != c.id || h.Fault == nil || !strings.HasPrefix(h.Fault.Message, "id: ") {
				t.Fatalf("got %+v", h)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no answer came")
		}
	}
	cancel()
	if err := <-taken; !errors.Is(err, context.Canceled) || len(theirs) > 0 {
		t.Fatalf("got %v; the other trainer heard %d", err, len(theirs))
	}
}
