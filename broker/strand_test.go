package broker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/schema"
)

// Idle slots that wait on every lane lose no message between them: whatever
// is sent to a wait that is over comes back at once.
func TestNoRequestIsStrandedBetweenIdleSlots(t *testing.T) {
	b := newBench(t)
	const rollouts = 300
	ctx, cancel := context.WithCancel(t.Context())
	var slots sync.WaitGroup
	took := make(chan schema.ID, rollouts)
	for range 4 {
		slots.Go(func() {
			for {
				j, err := b.worker.Take(ctx)
				if err != nil {
					return
				}
				took <- j.Request.ID
				if err := j.Done(t.Context(), schema.Result{ID: j.Request.ID, Trainer: "alpha", Attempt: j.Attempt, Status: schema.StatusDone}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range rollouts {
		r := request(schema.ID(fmt.Sprintf("alpha-%d", i)))
		start := time.Now()
		_, err := b.trainer.Submit(t.Context(), rand.IntN(4), []schema.Request{r})
		must(t, err)
		select {
		case <-took:
		case <-time.After(2500 * time.Millisecond): // ack wait is 3 s here
			t.Errorf("request %d was stranded", i)
			<-took
		}
		_ = start
	}
	cancel()
	slots.Wait()
}
