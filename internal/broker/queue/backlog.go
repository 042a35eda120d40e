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
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// backlogAtOnce is the number of queues that ReadBacklog reads at the same time.
const backlogAtOnce = 8

// Backlog is the content of all queues at one moment.
type Backlog struct {
	telemetry.Backlog
	Parked []Parked // with requests
}

// Parked are the requests of one lane that are parked, since no worker that looked
// could meet their needs.
type Parked struct {
	Trainer string
	Lane    string // p0 to p3
	Needs   schema.Needs
	Waiting uint64
}

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
func (r *Backlogs) Read(ctx context.Context) (Backlog, error) {
	b, out := r.broker, Backlog{}
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
	read := make([]Backlog, len(trainers))
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
		return Backlog{}, err
	}
	for _, part := range read {
		out.Lanes, out.Parked = append(out.Lanes, part.Lanes...), append(out.Parked, part.Parked...)
	}
	return out, nil
}

// waitingOf reads the lanes of a trainer's queue; none if the queue does not exist. An
// empty trainer is that of the plain lane. The ages of requests are read until aging ends.
func (r *Backlogs) waitingOf(ctx, aging context.Context, tid string) (out Backlog, err error) {
	name, lanes := subjects.StreamPlain, [subjects.Lanes]*telemetry.Waiting{}
	if tid != "" {
		name = subjects.Queue(tid)
	}
	s, err := r.broker.JetStream().Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("open stream %s: %w", name, broker.Reach(err))
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
			if needs, err := needsOf(info.Config); err == nil && info.NumPending > 0 {
				out.Parked = append(out.Parked, Parked{Trainer: tid, Lane: w.Lane, Needs: needs, Waiting: info.NumPending})
			}
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return out, fmt.Errorf("list the consumers of %s: %w", name, broker.Reach(err))
	}
	for _, w := range lanes {
		if w != nil {
			out.Lanes = append(out.Lanes, *w)
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
