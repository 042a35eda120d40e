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

// oldestWithin bounds the time to read the oldest request of a lane.
const oldestWithin = 2 * time.Second

// ReadBacklog reads how many requests the queues of all trainers have, and the plain
// lane. The credential may be that of a watcher or of a worker.
func ReadBacklog(ctx context.Context, b *broker.Broker) (telemetry.Backlog, error) {
	var out telemetry.Backlog
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
	all.SetLimit(backlogAtOnce)
	for i, tid := range trainers {
		all.Go(func() (err error) {
			read[i], err = waitingOf(op, b.JetStream(), tid)
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
// empty trainer is that of the plain lane.
func waitingOf(ctx context.Context, js jetstream.JetStream, tid string) ([]telemetry.Waiting, error) {
	name, lanes := subjects.StreamPlain, [subjects.Lanes]*telemetry.Waiting{}
	if tid != "" {
		name = subjects.Queue(tid)
	}
	s, err := js.Stream(ctx, name)
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
				w.Oldest, w.Ageless = storedAfter(ctx, s, info)
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
// has not delivered; zero: there is none any more. unknown is true if the server does
// not answer: it refuses so to read the queue of a trainer that was removed.
func storedAfter(ctx context.Context, s jetstream.Stream, c *jetstream.ConsumerInfo) (stored time.Time, unknown bool) {
	ctx, cancel := context.WithTimeout(ctx, oldestWithin)
	defer cancel()
	m, err := s.GetMsg(ctx, c.Delivered.Stream+1, jetstream.WithGetMsgSubject(c.Config.FilterSubject))
	if err != nil {
		return time.Time{}, !errors.Is(err, jetstream.ErrMsgNotFound)
	}
	return m.Time, false
}
