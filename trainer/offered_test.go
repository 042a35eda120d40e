package trainer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestWhatNoWorkerOffersIsRefused: an agent and a kind of sandbox alike, before anything is
// queued. What was offered once is not refused while its worker is away.
func TestWhatNoWorkerOffersIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.leave()
	offer := schema.Offer{Backends: []string{"dummy"}, Agents: []string{"mini"}}
	side, err := queue.NewWorker(b.nats.Worker(t, "w1"), queue.WorkerConfig{Worker: "w1", Instance: "i2", Slots: 1, Offer: func() schema.Offer { return offer }})
	harness.Must(t, err)
	stop := testenv.RunWorker(t, side)
	asks, err := queue.NewTrainer(b.nats.Trainer(t, "alpha"), "alpha")
	harness.Must(t, err)
	harness.Eventually(t, "the offer", 5*time.Minute, func() bool {
		fleet, err := asks.Fleet(t.Context())
		return err == nil && len(fleet.Workers) == 1 && len(fleet.Workers[0].Offer.Agents) == 1
	})
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-1")}))
	for field, change := range map[string]func(*schema.Request){
		"agent.name":      func(r *schema.Request) { r.Agent.Name = "pi" },
		"sandbox.backend": func(r *schema.Request) { r.Sandbox.Backend = "modal" },
	} {
		r := harness.Request("alpha-2")
		change(&r)
		var invalid *schema.InvalidError
		if err := b.trainer.Submit(t.Context(), []schema.Request{r}); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	separate := harness.Request("alpha-3")
	separate.Verify = &schema.Verify{Separate: &schema.SandboxChoice{Backend: "modal"}}
	var invalid *schema.InvalidError
	if err := b.trainer.Submit(t.Context(), []schema.Request{separate}); !errors.As(err, &invalid) || invalid.Field != "sandbox.backend" {
		t.Errorf("a separate verifier: got %v", err)
	}
	if n := b.trainer.Outstanding(); n != 1 {
		t.Errorf("%d rollouts are outstanding", n)
	}
	stop()
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-4")}))
}
