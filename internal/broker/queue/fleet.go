package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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
	if f.cfg.Full != nil {
		p.Full = f.cfg.Full()
	}
	for _, j := range f.jobs.claimed() {
		p.Running = append(p.Running, j.Request.ID)
	}
	data, err := schema.Encode(&p)
	if err != nil {
		return err
	}
	if _, err := f.broker.JetStream().Publish(ctx, subjects.Presence(f.wid, f.instance), data, jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("announce worker %s: %w", f.wid, err)
	}
	if err := f.broker.BulkConn().Publish(subjects.WorkerStatus(f.wid), data); err != nil {
		return fmt.Errorf("send the status of worker %s: %w", f.wid, err)
	}
	return nil
}

// presenceOf reads the presence of an instance of this worker, and the sequence of its
// message; 0: it has none.
func (f *fleet) presenceOf(ctx context.Context, instance string) (p schema.Presence, seq uint64, err error) {
	m, err := f.broker.Messages.Last(ctx, subjects.StreamWorkers, subjects.Presence(f.wid, instance))
	if m == nil || err != nil {
		return p, 0, err
	}
	if err := schema.Decode(m.Data, &p); err != nil {
		return p, m.Sequence, fmt.Errorf("read the presence of %s: %w", f.wid, err)
	}
	return p, m.Sequence, nil
}

// leave removes the presence entry of an instance of this worker.
func (f *fleet) leave(ctx context.Context, instance string) error {
	_, seq, err := f.presenceOf(ctx, instance)
	if seq == 0 {
		return err
	}
	s, err := f.broker.Streams.Open(ctx, subjects.StreamWorkers)
	if err != nil {
		return err
	}
	if err := s.DeleteMsg(ctx, seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
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
