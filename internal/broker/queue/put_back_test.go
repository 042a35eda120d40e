package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// TestARequestThatWasPutBackNeedsNoAckWaitAfterARestart: a worker that stops puts its requests
// back, and the server stops before another worker takes them.
func TestARequestThatWasPutBackNeedsNoAckWaitAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js := b.JetStream(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	c, err := js.Consumer(t.Context(), subjects.Queue("alpha"), subjects.ConsumerOf(subjects.DefaultLane))
	harness.Must(t, err)
	cfg := c.CachedInfo().Config
	cfg.AckWait = time.Hour
	_, err = js.UpdateConsumer(t.Context(), subjects.Queue("alpha"), cfg)
	harness.Must(t, err)
	harness.Must(t, j.Return(t.Context(), nil, true, 0))
	harness.Must(t, b.Broker.BulkConn().Flush())
	b.Server.Shutdown()
	b.Restart(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again, err := b.Worker.Take(ctx)
	harness.Must(t, err)
	if again.Request.ID != "alpha-1" || again.Attempt != 2 {
		t.Errorf("got %s, attempt %d", again.Request.ID, again.Attempt)
	}
	harness.Must(t, again.Done(t.Context(), outcome(again)))
}
