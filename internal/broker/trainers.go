package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Trainers makes, changes and deletes the streams of trainers.
type Trainers struct {
	*link
	streams *Streams
}

// Open makes the missing streams and consumers of a trainer, and returns
// its settings. Existing streams keep theirs. Workers do this by themselves when
// the trainer asks.
func (h *Trainers) Open(ctx context.Context, tid string) (TrainerSettings, error) {
	return h.OpenWith(ctx, tid, Timing{})
}

// OpenWith is Open on a connection that may not have called Setup. Then
// new consumers get this timing.
func (h *Trainers) OpenWith(ctx context.Context, tid string, t Timing) (TrainerSettings, error) {
	return h.open(ctx, tid, h.streams.wanted(t))
}

func (h *Trainers) open(ctx context.Context, tid string, c StreamsConfig) (TrainerSettings, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return TrainerSettings{}, err
	}
	c, err := h.streams.filled(ctx, c)
	if err != nil {
		return TrainerSettings{}, err
	}
	want := trainerStreams(tid, c.Trainer, c)
	there, missing := make([]jetstream.StreamConfig, len(want)), make([]bool, len(want))
	looks, op := errgroup.WithContext(ctx)
	for i := range want {
		looks.Go(func() (err error) {
			if there[i], err = h.streams.find(op, want[i].Name); errors.Is(err, jetstream.ErrStreamNotFound) {
				missing[i], err = true, nil
			}
			return openError(want[i].Name, tid, err)
		})
	}
	if err := looks.Wait(); err != nil {
		return TrainerSettings{}, err
	}
	if err := h.createMissing(ctx, tid, want, there, missing); err != nil {
		return TrainerSettings{}, err
	}
	if err := h.openConsumers(ctx, tid, c, missing[len(want)-1]); err != nil {
		return TrainerSettings{}, err
	}
	if slices.Contains(missing, true) {
		h.Announce(tid)
	}
	return settingsOf(there), nil
}

// trainerStreams configures the streams of a trainer, in the order of
// subjects.StreamsOf.
func trainerStreams(tid string, s TrainerSettings, c StreamsConfig) []jetstream.StreamConfig {
	c.Trainer = s
	queue := queueStream(subjects.Queue(tid), append(subjects.QueueFilters(tid), subjects.ParkedFilter(tid)), c)
	queue.Metadata = s.metadata()
	return []jetstream.StreamConfig{
		objectStream(subjects.TasksBucket(tid), s.MaxBundleBytes, c),
		objectStream(subjects.ArtifactsBucket(tid), s.MaxArtifactBytes, c),
		{
			// Without direct gets, every read goes through the leader.
			Name: subjects.Records(tid), Subjects: subjects.RecordFilters(tid),
			MaxMsgsPerSubject: max(c.Versions, 1), Discard: jetstream.DiscardOld, Replicas: c.Replicas, AllowAtomicPublish: true,
		},
		queue,
	}
}

// createMissing makes the missing streams of a trainer, the queue last, so that workers
// take no request of a trainer without records. It fills in their configurations. The
// buckets are made one after the other: a server looks for their room before it reserves
// it, so two at once could take more than there is, and none would be left for the queue.
func (h *Trainers) createMissing(ctx context.Context, tid string, want, there []jetstream.StreamConfig, missing []bool) error {
	sized := func(ctx context.Context, s jetstream.StreamConfig) (jetstream.Stream, error) {
		return h.streams.sized(ctx, s, h.js.CreateStream)
	}
	create := func(ctx context.Context, i int) (err error) {
		if missing[i] {
			there[i], err = h.create(ctx, want[i], sized)
		}
		return openError(want[i].Name, tid, err)
	}
	queue := len(want) - 1
	var buckets []int
	all, op := errgroup.WithContext(ctx)
	for i := range want[:queue] {
		if want[i].MaxBytes > 0 {
			buckets = append(buckets, i)
			continue
		}
		all.Go(func() error { return create(op, i) })
	}
	all.Go(func() error {
		for _, i := range buckets {
			if err := create(op, i); err != nil {
				return err
			}
		}
		return nil
	})
	if err := all.Wait(); err != nil {
		return err
	}
	return create(ctx, queue)
}

func openError(stream, tid string, err error) error {
	if err != nil {
		return fmt.Errorf("open stream %s of trainer %s: %w", stream, tid, err)
	}
	return nil
}

// create makes a stream with put, and returns its configuration. A request without an
// answer is repeated.
func (h *Trainers) create(ctx context.Context, want jetstream.StreamConfig, put func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (jetstream.StreamConfig, error) {
	return untilAnswered(ctx, func(ctx context.Context) (jetstream.StreamConfig, error) {
		stream, err := put(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another worker was faster
			stream, err = h.js.Stream(ctx, want.Name)
		}
		return configOf(stream, err)
	})
}

func configOf(s jetstream.Stream, err error) (jetstream.StreamConfig, error) {
	if err != nil {
		return jetstream.StreamConfig{}, err
	}
	return s.CachedInfo().Config, nil
}

// openConsumers makes the missing consumers of a trainer's queue at once. fresh is true if
// the queue was missing a moment ago: then it is not looked at first, and a consumer that
// another worker made meanwhile gets this configuration. A request without an answer is
// repeated.
func (h *Trainers) openConsumers(ctx context.Context, tid string, c StreamsConfig, fresh bool) error {
	all, op := errgroup.WithContext(ctx)
	for lane, filter := range subjects.QueueFilters(tid) {
		name := subjects.ConsumerOf(lane)
		all.Go(func() error {
			_, err := untilAnswered(op, func(ctx context.Context) (jetstream.Consumer, error) {
				if !fresh {
					if is, err := h.js.Consumer(ctx, subjects.Queue(tid), name); !errors.Is(err, jetstream.ErrConsumerNotFound) {
						return is, err
					}
				}
				return h.js.CreateOrUpdateConsumer(ctx, subjects.Queue(tid), consumerConfig(name, filter, c))
			})
			if err != nil {
				return fmt.Errorf("set up the consumer of %s: %w", filter, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// Set makes the missing streams of a trainer and changes its settings.
// A bound may be lower than the present content of its stream. The stream then
// refuses messages until it has room.
func (h *Trainers) Set(ctx context.Context, tid string, s TrainerSettings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c := h.streams.wanted(Timing{})
	c.Trainer = s.or(c.Trainer)
	is, err := h.open(ctx, tid, c)
	if err != nil {
		return err
	}
	if s = s.or(is); s == is {
		return nil
	}
	if c, err = h.streams.filled(ctx, c); err != nil {
		return err
	}
	for _, want := range trainerStreams(tid, s, c) {
		stream, err := h.js.Stream(ctx, want.Name)
		if err != nil {
			return fmt.Errorf("open stream %s of trainer %s: %w", want.Name, tid, err)
		}
		config := stream.CachedInfo().Config
		metadata := WeightOf(config) != WeightOf(want) || RecordBound(config) != RecordBound(want)
		if bound(config.MaxMsgs) == bound(want.MaxMsgs) && bound(config.MaxBytes) == bound(want.MaxBytes) && !metadata {
			continue
		}
		config.MaxMsgs, config.MaxBytes = want.MaxMsgs, want.MaxBytes
		if metadata {
			config.Metadata = want.Metadata
		}
		if _, err := h.js.UpdateStream(ctx, config); err != nil {
			return fmt.Errorf("change stream %s of trainer %s: %w", want.Name, tid, err)
		}
	}
	h.Announce(tid)
	return nil
}

// Delete deletes the streams of a trainer with all its requests, records,
// bundles and artifacts; ErrNotFound if it has none. A worker makes them again for a
// rollout that still runs, and for a trainer that may still connect.
func (h *Trainers) Delete(ctx context.Context, tid string) error {
	if err := schema.CheckTrainer(tid); err != nil {
		return err
	}
	found := false
	names := subjects.StreamsOf(tid)
	slices.Reverse(names) // the queue first, so that workers take no more requests
	for _, name := range names {
		err := h.js.DeleteStream(ctx, name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("delete stream %s of trainer %s: %w", name, tid, err)
		}
		found = found || err == nil
	}
	if !found {
		return fmt.Errorf("streams of trainer %s: %w", tid, ErrNotFound)
	}
	h.Announce(tid)
	return nil
}

// Settings returns the settings of a trainer; ErrNotFound if it has no streams.
func (h *Trainers) Settings(ctx context.Context, tid string) (TrainerSettings, error) {
	u, err := h.Use(ctx, tid)
	return u.Bounds, err
}

// TrainerUse has the bounds of a trainer and the content of its streams.
type TrainerUse struct {
	Bounds        TrainerSettings
	Queue         uint64 // requests, also of rollouts that run
	QueueBytes    uint64
	BundleBytes   uint64 // of bundles and large answers
	ArtifactBytes uint64 // of artifacts and large calls
	Records       uint64
	RecordBytes   uint64
}

// Use returns the bounds and the use of a trainer; ErrNotFound if it has no streams.
func (h *Trainers) Use(ctx context.Context, tid string) (u TrainerUse, err error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return u, err
	}
	var there []jetstream.StreamConfig
	var has []jetstream.StreamState
	for _, name := range subjects.StreamsOf(tid) {
		s, err := h.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return u, fmt.Errorf("stream %s of trainer %s: %w", name, tid, ErrNotFound)
		}
		if err != nil {
			return u, fmt.Errorf("open stream %s of trainer %s: %w", name, tid, Reach(err))
		}
		there, has = append(there, s.CachedInfo().Config), append(has, s.CachedInfo().State)
	}
	return TrainerUse{
		Bounds: settingsOf(there), Queue: has[3].Msgs, QueueBytes: has[3].Bytes, BundleBytes: has[0].Bytes, ArtifactBytes: has[1].Bytes,
		Records: has[2].Msgs, RecordBytes: has[2].Bytes,
	}, nil
}

// Records returns the bytes of a trainer's records and their bound; 0: none. While
// the records have more bytes, workers begin no rollouts of the trainer. ErrNotFound
// if it has no streams.
func (h *Trainers) Records(ctx context.Context, tid string) (bytes, most int64, err error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return 0, 0, err
	}
	queue, err := h.js.Stream(ctx, subjects.Queue(tid))
	if err == nil {
		most = RecordBound(queue.CachedInfo().Config)
		bytes, err = h.RecordBytes(ctx, tid)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return 0, 0, fmt.Errorf("streams of trainer %s: %w", tid, ErrNotFound)
	case err != nil:
		return 0, 0, fmt.Errorf("look at the records of trainer %s: %w", tid, Reach(err))
	}
	return bytes, most, nil
}

// RecordBytes returns the bytes of a trainer's records.
func (h *Trainers) RecordBytes(ctx context.Context, tid string) (int64, error) {
	s, err := h.js.Stream(ctx, subjects.Records(tid))
	if err != nil {
		return 0, err
	}
	return int64(min(s.CachedInfo().State.Bytes, math.MaxInt64)), nil
}

// List lists the trainers that have a queue.
func (h *Trainers) List(ctx context.Context) ([]string, error) {
	return h.With(ctx, subjects.AnyQueue)
}

// With lists the trainers with a stream for messages of a subject.
func (h *Trainers) With(ctx context.Context, subject string) ([]string, error) {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	names := h.js.StreamNames(op, jetstream.WithStreamListSubject(subject))
	var out []string
	for name := range names.Name() {
		if tid, ok := subjects.TrainerOfStream(name); ok {
			out = append(out, tid)
		}
	}
	if err := names.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, fmt.Errorf("list the streams of trainers: %w", Reach(err))
	}
	return out, nil
}

// Announce tells all workers that a trainer's streams were made or changed.
// It may be lost: workers also look by themselves.
func (h *Trainers) Announce(tid string) {
	if err := h.bulk.Publish(subjects.WorkerTrainers, []byte(tid)); err != nil {
		h.log.Debug().Err(err).Str("trainer", tid).Msg("a trainer was not announced to the workers")
	}
}
