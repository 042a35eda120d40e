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
	var there []schema.Presence
	for _, p := range now.present {
		all := *p
		all.Offer = *p.Offer.AllWork() // an outage of a service ends no rollout
		there = append(there, all)
	}
	seen, workers := map[class]*absenceTimer{}, schema.FleetOf(there)
	for _, c := range all {
		if c.name == subjects.ClassDelay || c.waiting == 0 {
			continue
		}
		why := workers.Unable(&c.needs)
		if why == "" {
			continue
		}
		v := j.idle[c.class]
		if v == nil {
			v = &absenceTimer{}
		}
		seen[c.class] = v
		if v.look(time.Now(), 4*j.timing.Tidy) >= j.timing.NoCapable {
			errs = append(errs, j.refuse(ctx, c, why))
		}
	}
	j.idle = seen
	return errors.Join(errs...)
}

// refuse ends the requests of a class.
func (j *trainerCheck) refuse(ctx context.Context, c queued, why string) error {
	q := &queue{trainer: j.tid, lane: c.lane, stream: subjects.Queue(j.tid), consumer: subjects.ConsumerOfClass(c.lane, c.name)}
	for range maxRefusals {
		d, err := j.puller.one(ctx, q)
		if d == nil || err != nil {
			return err
		}
		req, err := j.requests.read(ctx, d)
		if err == nil && req != nil {
			err = j.requests.refuse(ctx, d, req, why)
		}
		if err != nil {
			_ = d.nak(j.timing.Unfit)
			return fmt.Errorf("refuse a request of %s: %w", q.consumer, err)
		}
	}
	return nil
}
