package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// announce keeps this worker's presence known.
func (w *WorkerSide) announce(ctx context.Context) {
	for {
		op, cancel := context.WithTimeout(ctx, opTimeout)
		err := w.present(op, false)
		cancel()
		if err != nil && ctx.Err() == nil {
			w.log.Debug().Err(err).Msg("presence was not announced")
		}
		select {
		case <-ctx.Done():
			return
		case <-w.news: // a job began: a successor must know of it
			if pause(ctx, min(w.timing.Renew/5, 2*time.Second)) != nil {
				return
			}
		case <-time.After(w.timing.Renew):
		}
	}
}

func (w *WorkerSide) present(ctx context.Context, draining bool) error {
	p := schema.Presence{
		V: schema.Version, Worker: w.wid, Instance: w.instance, Version: w.cfg.Version, Slots: w.cfg.Slots, Draining: draining, Offer: w.offer(),
	}
	for _, j := range w.mine() {
		p.Running = append(p.Running, j.Request.ID)
	}
	data, err := schema.Encode(&p)
	if err != nil {
		return err
	}
	if _, err := w.js.Publish(ctx, subjects.Presence(w.wid), data, jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("announce worker %s: %w", w.wid, err)
	}
	if err := w.bulk.Publish(subjects.WorkerStatus(w.wid), data); err != nil {
		return fmt.Errorf("tell the status of worker %s: %w", w.wid, err)
	}
	return nil
}

func (w *WorkerSide) offer() schema.Offer {
	if w.cfg.Offer == nil {
		return schema.Offer{}
	}
	return w.cfg.Offer()
}

// lacks names what this worker does not have for a request.
func (w *WorkerSide) lacks(r *schema.Request) error {
	if w.cfg.Offer == nil {
		return nil
	}
	o := w.cfg.Offer()
	return o.Lacks(r)
}

func (b *Broker) presenceOf(ctx context.Context, wid string) (*schema.Presence, error) {
	m, err := b.last(ctx, subjects.StreamWorkers, subjects.Presence(wid))
	if m == nil || err != nil {
		return nil, err
	}
	var p schema.Presence
	if err := schema.Decode(m.Data, &p); err != nil {
		return nil, fmt.Errorf("read the presence of %s: %w", wid, err)
	}
	return &p, nil
}

// Workers lists the workers that have shown themselves within the last 40 s.
func (b *Broker) Workers(ctx context.Context) ([]schema.Presence, error) {
	var out []schema.Presence
	err := b.newest(ctx, subjects.StreamWorkers, subjects.PresenceFilter, 0, func(m jetstream.Msg, _ *jetstream.MsgMetadata) bool {
		var p schema.Presence
		if err := schema.Decode(m.Data(), &p); err != nil {
			b.log.Warn().Err(err).Str("subject", m.Subject()).Msg("a worker's presence cannot be read")
			return true
		}
		out = append(out, p)
		return true
	})
	return out, err
}

// newest reads the messages of a stream from a sequence on, in order, until
// none is left or handle returns false.
func (b *Broker) newest(ctx context.Context, stream, filter string, from uint64, handle func(jetstream.Msg, *jetstream.MsgMetadata) bool) error {
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: 30 * time.Second}
	if from > 1 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	c, err := b.js.OrderedConsumer(ctx, stream, cfg)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	left := c.CachedInfo().NumPending
	name := c.CachedInfo().Name
	defer func() {
		op, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
		defer cancel()
		_ = b.js.DeleteConsumer(op, stream, name) // it would vanish by itself
	}()
	for left > 0 {
		got, more, err := b.fetch(c, int(min(left, 512)), &left, handle)
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		if got == 0 || !more {
			return nil
		}
		name = c.CachedInfo().Name
	}
	return nil
}

// fetch reads messages that are there, or were a moment ago: a newer one of the
// same subject takes the place of an older.
func (b *Broker) fetch(c jetstream.Consumer, n int, left *uint64, handle func(jetstream.Msg, *jetstream.MsgMetadata) bool) (got int, more bool, err error) {
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(time.Second))
	if err != nil {
		return 0, false, err
	}
	more = true
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return got, false, err
		}
		got++
		*left = meta.NumPending
		if more = more && handle(m, meta); !more {
			break
		}
	}
	return got, more, batch.Error()
}

// pass gives a request that this worker cannot run to one that can, or sends
// it away for a while. When nobody has offered what it asks for long enough,
// it fails.
func (w *WorkerSide) pass(ctx context.Context, d *delivery, req *schema.Request, lacks error) error {
	all, err := w.fleet.list(ctx, w)
	if err != nil {
		return err
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	able := false
	for _, free := range []bool{true, false} { // those with a free slot first
		for _, p := range all {
			if p.Worker == w.wid || p.Draining || p.Offer.Lacks(req) != nil {
				continue
			}
			able = true
			if free != (len(p.Running) < p.Slots) {
				continue
			}
			if w.hand(ctx, p.Worker, d, req) {
				w.unfit.forget(req.ID)
				return nil
			}
		}
	}
	if able {
		w.unfit.forget(req.ID)
		return d.again(w.timing.Unfit)
	}
	if w.unfit.since(req, w.timing) < w.timing.NoCapable {
		return d.again(w.timing.Unfit)
	}
	fault := schema.Faultf("request", schema.CodeNoWorker, schema.WhoUser, "no live worker offers what it asks: %v", lacks)
	state, seq, found, err := w.readState(ctx, req.ID)
	switch {
	case err != nil:
		return err
	case found && state.Status.Terminal():
		return d.done(ctx)
	case found && state.Owned(): // by one that could, if it still lives
		standing, err := w.leaseOf(ctx, state.Worker, state.Instance)
		if err != nil {
			return err
		}
		if standing == leaseAlive {
			return d.again(w.timing.Busy)
		}
	case !found:
		state = schema.State{V: schema.Version, ID: req.ID, Trainer: req.Trainer}
	}
	return w.refuse(ctx, d, req, state, seq, schema.StatusFailed, fault)
}

// hand gives a message to another worker; true if that one has taken it.
func (w *WorkerSide) hand(ctx context.Context, to string, d *delivery, req *schema.Request) bool {
	data, err := schema.Encode(&schema.Control{V: schema.Version, Do: schema.ControlTake, ID: req.ID, Subject: d.subject, Ack: d.ack, Request: d.data})
	if err != nil {
		return false
	}
	op, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := w.bulk.RequestWithContext(op, subjects.WorkerControl(to), data)
	return err == nil && string(answer.Data) == "+"
}

// fleet remembers for a moment who is there.
type fleet struct {
	mu  sync.Mutex
	all []schema.Presence
	at  time.Time
}

func (f *fleet) list(ctx context.Context, w *WorkerSide) ([]schema.Presence, error) {
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

// handover keeps requests that other workers gave to this one until a slot is
// free, so that one with rare equipment is not starved of what only it can do.
type handover struct {
	w *WorkerSide

	mu      sync.Mutex
	closed  bool
	waiting map[*delivery]time.Time // since the last sign to the queue
}

func (h *handover) take(c *schema.Control) bool {
	d, err := newDelivery(h.w.bulk, c.Subject, c.Ack, c.Request)
	if err != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	select {
	case h.w.handed <- d:
		h.waiting[d] = time.Now()
		return true
	default:
		return false
	}
}

// taken ends the watch over a message that a slot has by now.
func (h *handover) taken(d *delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiting, d)
}

// progress keeps the waiting messages from being delivered again.
func (h *handover) progress(now time.Time, every time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for d, last := range h.waiting {
		if now.Sub(last) >= every {
			h.waiting[d] = now
			if err := d.progress(); err != nil {
				h.w.log.Debug().Err(err).Msg("progress was not told")
			}
		}
	}
}

// close gives back what waits.
func (h *handover) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for {
		select {
		case d := <-h.w.handed:
			delete(h.waiting, d)
			if err := d.again(0); err != nil {
				h.w.log.Debug().Err(err).Msg("a request was not given back")
			}
		default:
			return
		}
	}
}
