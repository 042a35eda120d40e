package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// fleet announces a worker to the others and lists the live ones.
type fleet struct {
	*base
	jobs     *jobs
	draining atomic.Bool   // it takes no new requests
	turn     chan struct{} // has an item while a presence is published, so that an older one never follows

	mu  sync.Mutex // locked while the list is read
	all []schema.Presence
	at  time.Time // when all was read
}

// announce publishes this worker's presence again and again.
func (f *fleet) announce(ctx context.Context) {
	for {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		err := f.present(op)
		cancel()
		if err != nil && ctx.Err() == nil {
			f.log.Debug().Err(err).Msg("presence was not announced")
		}
		select {
		case <-ctx.Done():
			return
		case <-f.jobs.news: // a job began: a successor reads its id in the presence
			if wire.Pause(ctx, min(f.timing.Renew/5, 2*time.Second)) != nil {
				return
			}
		case <-time.After(f.timing.Renew):
		}
	}
}

func (f *fleet) present(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return fmt.Errorf("announce worker %s: %w", f.wid, context.Cause(ctx))
	}
	p := schema.Presence{
		V: schema.Version, Worker: f.wid, Instance: f.instance, Version: f.cfg.Version, Slots: f.cfg.Slots, Draining: f.draining.Load(), Shells: f.cfg.Shells, Offer: f.offer(),
	}
	if f.cfg.Load != nil {
		p.Load = f.cfg.Load()
	}
	for _, j := range f.jobs.claimed() {
		p.Running = append(p.Running, j.Request.ID)
	}
	data, err := schema.Encode(&p)
	if err != nil {
		return err
	}
	if _, err := f.broker.JetStream().Publish(ctx, subjects.Presence(f.wid), data, jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("announce worker %s: %w", f.wid, err)
	}
	if err := f.broker.BulkConn().Publish(subjects.WorkerStatus(f.wid), data); err != nil {
		return fmt.Errorf("send the status of worker %s: %w", f.wid, err)
	}
	return nil
}

// presenceOf reads the presence of a worker; nil: it has none.
func presenceOf(ctx context.Context, from *broker.Messages, wid string) (*schema.Presence, error) {
	m, err := from.Last(ctx, subjects.StreamWorkers, subjects.Presence(wid))
	if m == nil || err != nil {
		return nil, err
	}
	var p schema.Presence
	if err := schema.Decode(m.Data, &p); err != nil {
		return nil, fmt.Errorf("read the presence of %s: %w", wid, err)
	}
	return &p, nil
}

// leave removes the presence entry.
func (f *fleet) leave(ctx context.Context) error {
	s, err := f.broker.Streams.Open(ctx, subjects.StreamWorkers)
	if err != nil {
		return err
	}
	m, err := f.broker.Messages.Last(ctx, subjects.StreamWorkers, subjects.Presence(f.wid))
	if m == nil || err != nil {
		return err
	}
	if err := s.DeleteMsg(ctx, m.Sequence); err != nil {
		return fmt.Errorf("remove the presence of %s: %w", f.wid, err)
	}
	return nil
}

// list returns the live workers as they were a short time ago.
func (f *fleet) list(ctx context.Context) ([]schema.Presence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) > f.timing.Unfit/2 {
		all, err := f.broker.Records.Workers(ctx)
		if err != nil {
			return nil, err
		}
		f.all, f.at = all, time.Now()
	}
	return slices.Clone(f.all), nil
}
