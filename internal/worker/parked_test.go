package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// rentedBackend is a backend whose service refuses the account until it works.
type rentedBackend struct {
	*dummy.Backend
	works   atomic.Bool
	refused atomic.Int64 // requests of rollouts
}

var errAccount = errors.New("the service answers 401")

func (*rentedBackend) Name() string { return "rented" }

func (b *rentedBackend) Check(context.Context) error {
	if !b.works.Load() {
		return errAccount
	}
	return nil
}

func (b *rentedBackend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	if !b.works.Load() {
		b.refused.Add(1)
		return nil, &sandboxes.ServiceError{Backend: b.Name(), Refused: true, Err: errAccount}
	}
	return b.Backend.Create(ctx, s)
}

// TestRolloutsOfAServiceThatRefusesWait: they lose no try, and have no result although no
// worker can run them; a rollout in another sandbox runs. They run when the service works.
// Metrics tell which backend fails.
func TestRolloutsOfAServiceThatRefusesWait(t *testing.T) {
	t.Parallel()
	programs := shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)})
	rented := &rentedBackend{Backend: &dummy.Backend{Programs: programs}}
	b := newBench(t, programs, func(c *worker.Config) {
		c.Backends = append(c.Backends, rented)
		c.Health = worker.NewHealth(c.Backends, zerolog.Nop())
	})
	url := b.serveMetrics(t)
	waits := request("alpha-waits")
	waits.Sandbox.Backend, waits.MaxAttempts = rented.Name(), 1
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{waits}))
	harness.Eventually(t, "the backend fails", 5*time.Minute, func() bool { return rented.refused.Load() > 0 })
	const fails, works = `turngate_backend_failing{backend="rented"}`, `turngate_backend_failing{backend="dummy"}`
	harness.Eventually(t, "the metric of the backend", 5*time.Minute, func() bool { return scrape(t, url)[fails] == 1 })
	if res := b.result(t, request("alpha-other")); res.ID != "alpha-other" || res.Status != schema.StatusDone || res.Reward == nil {
		t.Errorf("another backend: %s is %s, %v", res.ID, res.Status, res.Fault)
	}
	rented.works.Store(true)
	if res := b.next(t); res.ID != "alpha-waits" || res.Status != schema.StatusDone || res.Reward == nil || rented.refused.Load() != 1 {
		t.Errorf("%s is %s after %d refusals, %v", res.ID, res.Status, rented.refused.Load(), res.Fault)
	}
	got := scrape(t, url)
	for _, series := range []string{fails, works} {
		if n, there := got[series]; n != 0 || !there {
			t.Errorf("when both work, %s is %v (%t)", series, n, there)
		}
	}
	if n := rented.Open(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}
