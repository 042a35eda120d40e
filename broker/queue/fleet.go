package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker/internal/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// announce publishes this worker's presence again and again.
func (w *Worker) announce(ctx context.Context) {
	for {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		err := w.present(op)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Debug().Err(err).Msg("presence was not announced")
		}
		select {
		case <-ctx.Done():
			return
		case <-w.news: // a job began: a successor reads its id in the presence
			if wire.Pause(ctx, min(w.timing.Renew/5, 2*time.Second)) != nil {
				return
			}
		case <-time.After(w.timing.Renew):
		}
	}
}

func (w *Worker) present(ctx context.Context) error {
	p := schema.Presence{
		V: schema.Version, Worker: w.wid, Instance: w.instance, Version: w.cfg.Version, Slots: w.cfg.Slots, Draining: w.draining.Load(), Offer: w.offer(),
	}
	for _, j := range w.claimedJobs() {
		p.Running = append(p.Running, j.Request.ID)
	}
	data, err := schema.Encode(&p)
	if err != nil {
		return err
	}
	if _, err := w.JetStream().Publish(ctx, subjects.Presence(w.wid), data, jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("announce worker %s: %w", w.wid, err)
	}
	if err := w.BulkConn().Publish(subjects.WorkerStatus(w.wid), data); err != nil {
		return fmt.Errorf("tell the status of worker %s: %w", w.wid, err)
	}
	return nil
}

func (w *Worker) offer() schema.Offer {
	if w.cfg.Offer == nil {
		return schema.Offer{}
	}
	return w.cfg.Offer()
}

// lacks returns an error that names the first need of a request that this worker
// does not offer; nil if it can run the request.
func (w *Worker) lacks(r *schema.Request) error {
	if w.cfg.Offer == nil {
		return nil
	}
	o := w.cfg.Offer()
	return o.Lacks(r)
}

func (w *Worker) presenceOf(ctx context.Context, wid string) (*schema.Presence, error) {
	m, err := w.Last(ctx, subjects.StreamWorkers, subjects.Presence(wid))
	if m == nil || err != nil {
		return nil, err
	}
	var p schema.Presence
	if err := schema.Decode(m.Data, &p); err != nil {
		return nil, fmt.Errorf("read the presence of %s: %w", wid, err)
	}
	return &p, nil
}

// pass returns a request that this worker cannot run, and that it could not park,
// to the queue with a growing delay. If no worker has offered its needs for
// Timing.NoCapable, the rollout fails.
func (w *Worker) pass(ctx context.Context, d *delivery, req *schema.Request, lacks error) error {
	all, err := w.fleet.list(ctx, w)
	if err != nil {
		return err
	}
	later := w.timing.Unfit << min(d.delivered-1, 2)
	if slices.ContainsFunc(all, func(p schema.Presence) bool { return !p.Draining && p.Offer.Lacks(req) == nil }) {
		w.unfit.forget(req.ID)
		return d.nak(later)
	}
	if waited := w.unfit.since(req, w.timing); waited < w.timing.NoCapable {
		return d.nak(min(later, w.timing.NoCapable-waited))
	}
	return w.refuse(ctx, d, req, lacks)
}

// refuse ends the rollout of a request that no worker can run.
func (w *Worker) refuse(ctx context.Context, d *delivery, req *schema.Request, lacks error) error {
	m := w.aboutMessage(d, req, askRefuse)
	m.fault = schema.Faultf("request", schema.CodeNoWorker, schema.WhoUser, "no live worker offers what it asks: %v", lacks)
	did, err := w.resolve(ctx, m)
	if err != nil {
		return err
	}
	return w.settle(ctx, m, did)
}

// fleet caches the list of live workers for a short time.
type fleet struct {
	mu  sync.Mutex
	all []schema.Presence
	at  time.Time
}

func (f *fleet) list(ctx context.Context, w *Worker) ([]schema.Presence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) > w.timing.Unfit/2 {
		all, err := w.Workers(ctx)
		if err != nil {
			return nil, err
		}
		f.all, f.at = all, time.Now()
	}
	return slices.Clone(f.all), nil
}
