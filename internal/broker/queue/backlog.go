package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/subjects"
)

// backlogAtOnce is the number of queues that ReadBacklog reads at the same time.
const backlogAtOnce = 8

// Backlogs reads how many requests the queues have.
type Backlogs struct {
	broker *broker.Broker
	ages   ages
}

// NewBacklogs returns a reader. The credential may be that of a watcher or of a worker.
func NewBacklogs(b *broker.Broker) *Backlogs {
	return &Backlogs{broker: b, ages: ages{silent: map[string]time.Time{}}}
}

// Read reads the queues of all trainers and the plain lane.
func (r *Backlogs) Read(ctx context.Context) (telemetry.Backlog, error) {
	b, out := r.broker, telemetry.Backlog{}
	trainers, err := b.Trainers.List(ctx)
	if err != nil {
		return out, err
	}
	dead, err := b.JetStream().Stream(ctx, subjects.StreamDead)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound): // the first worker makes it
	case err != nil:
		return out, fmt.Errorf("open stream %s: %w", subjects.StreamDead, broker.Reach(err))
	default:
		out.Dead = dead.CachedInfo().State.Msgs
	}
	trainers = append(trainers, "") // the plain lane
	read := make([][]telemetry.Waiting, len(trainers))
	all, op := errgroup.WithContext(ctx)
	aging, cancel := context.WithTimeout(op, agesWithin)
	defer cancel()
	all.SetLimit(backlogAtOnce)
	for i, tid := range trainers {
		all.Go(func() (err error) {
			read[i], err = r.waitingOf(op, aging, tid)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return telemetry.Backlog{}, err
	}
	for _, lanes := range read {
		out.Lanes = append(out.Lanes, lanes...)
	}
	return out, nil
}

// waitingOf reads the lanes of a trainer's queue; none if the queue does not exist. An
// empty trainer is that of the plain lane. The ages of requests are read until aging ends.
func (r *Backlogs) waitingOf(ctx, aging context.Context, tid string) ([]telemetry.Waiting, error) {
	name, lanes := subjects.StreamPlain, [subjects.Lanes]*telemetry.Waiting{}
	if tid != "" {
		name = subjects.Queue(tid)
	}
	s, err := r.broker.JetStream().Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, broker.Reach(err))
	}
	list := s.ListConsumers(ctx)
	for info := range list.Info() {
		lane, class, ok := subjects.ParseConsumer(info.Name)
		if !ok {
			continue
		}
		w := lanes[lane]
		if w == nil {
			w = &telemetry.Waiting{Trainer: tid, Lane: "p" + strconv.Itoa(lane)}
			lanes[lane] = w
		}
		unacked, again := uint64(max(info.NumAckPending, 0)), uint64(max(info.NumRedelivered, 0))
		switch class {
		case "":
			w.Queued, w.Taken = info.NumPending, w.Taken+unacked
			if w.Queued > 0 {
				w.Oldest, w.Ageless = r.ages.read(aging, tid, func(ctx context.Context) (time.Time, error) { return storedAfter(ctx, s, info) })
			}
		case subjects.ClassDelay: // each is delivered at once, and again when its time has come
			again = min(again, unacked)
			w.Delayed += info.NumPending + unacked - again
			w.Taken += again
		default:
			w.Unfit += info.NumPending
			w.Taken += unacked
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, fmt.Errorf("list the consumers of %s: %w", name, broker.Reach(err))
	}
	var out []telemetry.Waiting
	for _, w := range lanes {
		if w != nil {
			out = append(out, *w)
		}
	}
	return out, nil
}

// storedAfter returns the time at which the oldest message was stored that a consumer
// has not delivered; zero: there is none any more.
func storedAfter(ctx context.Context, s jetstream.Stream, c *jetstream.ConsumerInfo) (time.Time, error) {
	m, err := s.GetMsg(ctx, c.Delivered.Stream+1, jetstream.WithGetMsgSubject(c.Config.FilterSubject))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return m.Time, nil
}
