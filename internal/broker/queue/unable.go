package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// maxRefusals bounds the requests of a class that the janitor ends in one round.
const maxRefusals = 10_000

// unable ends the parked requests that no live worker could run for
// Timing.NoCapable. Before, it makes the missing consumers of classes.
func (j *trainerCheck) unable(ctx context.Context, now fleetView) error {
	if len(now.present) == 0 { // the workers are not known
		return nil
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	s, err := j.broker.JetStream().Stream(op, subjects.Queue(j.tid))
	if broker.IsMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open stream %s: %w", subjects.Queue(j.tid), broker.Reach(err))
	}
	all, waiting, err := j.classes(op, s)
	if err != nil {
		return err
	}
	errs := []error{j.restore(ctx, s, all, waiting)} // each of one class; the others are still looked after
	seen := map[class]*absenceTimer{}
	for _, c := range all {
		if c.name == subjects.ClassDelay || c.waiting == 0 {
			continue
		}
		lacks := now.lacks(&c.needs)
		if lacks == nil {
			continue
		}
		v := j.idle[c.class]
		if v == nil {
			v = &absenceTimer{}
		}
		seen[c.class] = v
		if v.look(time.Now(), 4*j.timing.Tidy) >= j.timing.NoCapable {
			errs = append(errs, j.refuse(ctx, c, lacks))
		}
	}
	j.idle = seen
	return errors.Join(errs...)
}

// lacks returns nil if a live worker meets the needs or all workers drain, and
// otherwise the first need that one of them lacks.
func (s fleetView) lacks(n *schema.Needs) error {
	var lacks error
	for _, p := range s.present {
		if p.Draining {
			continue
		}
		if lacks = p.Offer.Meets(n); lacks == nil {
			return nil
		}
	}
	return lacks
}

// refuse ends the requests of a class.
func (j *trainerCheck) refuse(ctx context.Context, c queued, lacks error) error {
	q := &queue{trainer: j.tid, lane: c.lane, stream: subjects.Queue(j.tid), consumer: subjects.ConsumerOfClass(c.lane, c.name)}
	for range maxRefusals {
		d, err := j.puller.one(ctx, q)
		if d == nil || err != nil {
			return err
		}
		req, err := j.requests.read(ctx, d)
		if err == nil && req != nil {
			err = j.requests.refuse(ctx, d, req, lacks)
		}
		if err != nil {
			_ = d.nak(j.timing.Unfit)
			return fmt.Errorf("refuse a request of %s: %w", q.consumer, err)
		}
	}
	return nil
}
