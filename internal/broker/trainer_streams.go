package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TrainerSettings are the bounds of one trainer and its share of the workers.
// They are limits and metadata of the trainer's streams, so every worker reads
// them from the server. A value of 0 keeps the value of an existing stream; a new
// stream gets the default.
type TrainerSettings struct {
	MaxQueue         int64 // requests in the queue
	MaxQueueBytes    int64 // bytes of the requests in the queue
	MaxBundleBytes   int64 // bytes of bundles and large answers
	MaxArtifactBytes int64 // bytes of artifacts and large calls
	// MaxRecordBytes bounds the records. While they have more bytes, workers begin no
	// rollouts of the trainer. No record is refused or deleted for it.
	MaxRecordBytes int64
	Weight         int // number of requests that workers take for each request of a trainer with weight 1
}

// AnyRecordBytes is a MaxRecordBytes that no trainer reaches.
const AnyRecordBytes = 1 << 50

// DefaultTrainer returns the settings of a trainer without settings of its own.
func DefaultTrainer() TrainerSettings {
	return TrainerSettings{MaxQueue: 1_000_000, MaxQueueBytes: 1 << 30, MaxBundleBytes: 8 << 30, MaxArtifactBytes: 32 << 30, MaxRecordBytes: 32 << 30, Weight: 1}
}

// or replaces zeros by the settings of d.
func (s TrainerSettings) or(d TrainerSettings) TrainerSettings {
	return TrainerSettings{
		MaxQueue: cmp.Or(s.MaxQueue, d.MaxQueue), MaxQueueBytes: cmp.Or(s.MaxQueueBytes, d.MaxQueueBytes), MaxBundleBytes: cmp.Or(s.MaxBundleBytes, d.MaxBundleBytes),
		MaxArtifactBytes: cmp.Or(s.MaxArtifactBytes, d.MaxArtifactBytes), MaxRecordBytes: cmp.Or(s.MaxRecordBytes, d.MaxRecordBytes), Weight: cmp.Or(s.Weight, d.Weight),
	}
}

// Validate checks the settings. An error is an *schema.InvalidError that names
// the field.
func (s TrainerSettings) Validate() error {
	for _, f := range []struct {
		name  string
		value int64
		most  int64
	}{
		{"max_queue", s.MaxQueue, 1 << 40}, {"max_queue_bytes", s.MaxQueueBytes, 1 << 50}, {"max_bundle_bytes", s.MaxBundleBytes, 1 << 50},
		{"max_artifact_bytes", s.MaxArtifactBytes, 1 << 50}, {"max_record_bytes", s.MaxRecordBytes, AnyRecordBytes}, {"weight", int64(s.Weight), schema.MaxWeight},
	} {
		if f.value < 0 || f.value > f.most {
			return &schema.InvalidError{Field: f.name, Value: strconv.FormatInt(f.value, 10), Want: fmt.Sprintf("want 1 to %d, or 0 to leave it as it is", f.most)}
		}
	}
	return nil
}

// Keys of the metadata of a trainer's queue.
const (
	metaWeight  = "turngate.weight"
	metaRecords = "turngate.max_record_bytes"
)

// metadata returns the settings that a trainer's queue has as metadata.
func (s TrainerSettings) metadata() map[string]string {
	return map[string]string{metaWeight: strconv.Itoa(s.Weight), metaRecords: strconv.FormatInt(s.MaxRecordBytes, 10)}
}

// RecordBound reads the bound of a trainer's records from its queue's metadata; 0:
// none.
func RecordBound(queue jetstream.StreamConfig) int64 {
	n, err := strconv.ParseInt(queue.Metadata[metaRecords], 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// WeightOf reads the weight of a trainer from its queue's metadata.
func WeightOf(queue jetstream.StreamConfig) int {
	n, err := strconv.Atoi(queue.Metadata[metaWeight])
	if err != nil || n < 1 {
		return 1
	}
	return min(n, schema.MaxWeight)
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

// OpenTrainer makes the missing streams and consumers of a trainer, and returns
// its settings. Existing streams keep theirs. Workers do this by themselves when
// the trainer asks.
func (b *Broker) OpenTrainer(ctx context.Context, tid string) (TrainerSettings, error) {
	return b.OpenTrainerWith(ctx, tid, Timing{})
}

// OpenTrainerWith is OpenTrainer on a connection that may not have called Setup. Then
// new consumers get this timing.
func (b *Broker) OpenTrainerWith(ctx context.Context, tid string, t Timing) (TrainerSettings, error) {
	return b.openTrainer(ctx, tid, b.wanted(t))
}

func (b *Broker) openTrainer(ctx context.Context, tid string, c StreamsConfig) (TrainerSettings, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return TrainerSettings{}, err
	}
	c, err := b.filled(ctx, c)
	if err != nil {
		return TrainerSettings{}, err
	}
	want := trainerStreams(tid, c.Trainer, c)
	there, missing := make([]jetstream.StreamConfig, len(want)), make([]bool, len(want))
	looks, op := errgroup.WithContext(ctx)
	for i := range want {
		looks.Go(func() (err error) {
			if there[i], err = b.findStream(op, want[i].Name); errors.Is(err, jetstream.ErrStreamNotFound) {
				missing[i], err = true, nil
			}
			return openError(want[i].Name, tid, err)
		})
	}
	if err := looks.Wait(); err != nil {
		return TrainerSettings{}, err
	}
	// One after the other: while a stream is made on a small disk, it reserves much
	// more than it keeps. The queue is the last one, so that workers take no request
	// of a trainer without records.
	for i := range want {
		if !missing[i] {
			continue
		}
		if there[i], err = b.makeStream(ctx, want[i]); err != nil {
			return TrainerSettings{}, openError(want[i].Name, tid, err)
		}
	}
	if err := b.openConsumers(ctx, tid, c); err != nil {
		return TrainerSettings{}, err
	}
	if slices.Contains(missing, true) {
		b.TellTrainers(tid)
	}
	return settingsOf(there), nil
}

func openError(stream, tid string, err error) error {
	if err != nil {
		return fmt.Errorf("open stream %s of trainer %s: %w", stream, tid, err)
	}
	return nil
}

// findStream returns the configuration of a stream. A request without an answer is
// repeated.
func (b *Broker) findStream(ctx context.Context, name string) (jetstream.StreamConfig, error) {
	return untilAnswered(ctx, func(ctx context.Context) (jetstream.StreamConfig, error) {
		return configOf(b.js.Stream(ctx, name))
	})
}

// makeStream makes a stream, and returns its configuration. A request without an
// answer is repeated.
func (b *Broker) makeStream(ctx context.Context, want jetstream.StreamConfig) (jetstream.StreamConfig, error) {
	return untilAnswered(ctx, func(ctx context.Context) (jetstream.StreamConfig, error) {
		stream, err := b.sized(ctx, want, b.js.CreateStream)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another worker was faster
			stream, err = b.js.Stream(ctx, want.Name)
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

// openConsumers makes the missing consumers of a trainer's queue. A request without
// an answer is repeated.
func (b *Broker) openConsumers(ctx context.Context, tid string, c StreamsConfig) error {
	all, op := errgroup.WithContext(ctx)
	for lane, filter := range subjects.QueueFilters(tid) {
		name := subjects.ConsumerOf(lane)
		all.Go(func() error {
			_, err := untilAnswered(op, func(ctx context.Context) (jetstream.Consumer, error) {
				is, err := b.js.Consumer(ctx, subjects.Queue(tid), name)
				if errors.Is(err, jetstream.ErrConsumerNotFound) {
					return b.js.CreateOrUpdateConsumer(ctx, subjects.Queue(tid), consumerConfig(name, filter, c))
				}
				return is, err
			})
			if err != nil {
				return fmt.Errorf("set up the consumer of %s: %w", filter, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// settingsOf reads the settings from the configurations of a trainer's streams,
// in the order of trainerStreams.
func settingsOf(streams []jetstream.StreamConfig) TrainerSettings {
	bundles, artifacts, queue := streams[0], streams[1], streams[3]
	return TrainerSettings{
		MaxQueue: max(queue.MaxMsgs, 0), MaxQueueBytes: max(queue.MaxBytes, 0), MaxBundleBytes: max(bundles.MaxBytes, 0),
		MaxArtifactBytes: max(artifacts.MaxBytes, 0), MaxRecordBytes: RecordBound(queue), Weight: WeightOf(queue),
	}
}

// SetTrainer makes the missing streams of a trainer and changes its settings.
// A bound may be lower than the present content of its stream. The stream then
// refuses messages until it has room.
func (b *Broker) SetTrainer(ctx context.Context, tid string, s TrainerSettings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c := b.wanted(Timing{})
	c.Trainer = s.or(c.Trainer)
	is, err := b.openTrainer(ctx, tid, c)
	if err != nil {
		return err
	}
	if s = s.or(is); s == is {
		return nil
	}
	if c, err = b.filled(ctx, c); err != nil {
		return err
	}
	for _, want := range trainerStreams(tid, s, c) {
		stream, err := b.js.Stream(ctx, want.Name)
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
		if _, err := b.js.UpdateStream(ctx, config); err != nil {
			return fmt.Errorf("change stream %s of trainer %s: %w", want.Name, tid, err)
		}
	}
	b.TellTrainers(tid)
	return nil
}

// DeleteTrainer deletes the streams of a trainer with all its requests, records,
// bundles and artifacts; ErrNotFound if it has none. A worker makes them again for a
// rollout that still runs, and for a trainer that may still connect.
func (b *Broker) DeleteTrainer(ctx context.Context, tid string) error {
	if err := schema.CheckTrainer(tid); err != nil {
		return err
	}
	found := false
	names := subjects.StreamsOf(tid)
	slices.Reverse(names) // the queue first, so that workers take no more requests
	for _, name := range names {
		err := b.js.DeleteStream(ctx, name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("delete stream %s of trainer %s: %w", name, tid, err)
		}
		found = found || err == nil
	}
	if !found {
		return fmt.Errorf("streams of trainer %s: %w", tid, ErrNotFound)
	}
	b.TellTrainers(tid)
	return nil
}

// bound is a limit of a stream, for which the server writes -1 if there is none.
func bound(limit int64) int64 { return max(limit, 0) }

// Trainer returns the settings of a trainer; ErrNotFound if it has no streams.
func (b *Broker) Trainer(ctx context.Context, tid string) (TrainerSettings, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return TrainerSettings{}, err
	}
	var there []jetstream.StreamConfig
	for _, name := range subjects.StreamsOf(tid) {
		s, err := b.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return TrainerSettings{}, fmt.Errorf("stream %s of trainer %s: %w", name, tid, ErrNotFound)
		}
		if err != nil {
			return TrainerSettings{}, fmt.Errorf("open stream %s of trainer %s: %w", name, tid, err)
		}
		there = append(there, s.CachedInfo().Config)
	}
	return settingsOf(there), nil
}

// Records returns the bytes of a trainer's records and their bound; 0: none. While
// the records have more bytes, workers begin no rollouts of the trainer. ErrNotFound
// if it has no streams.
func (b *Broker) Records(ctx context.Context, tid string) (bytes, most int64, err error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return 0, 0, err
	}
	queue, err := b.js.Stream(ctx, subjects.Queue(tid))
	if err == nil {
		most = RecordBound(queue.CachedInfo().Config)
		bytes, err = b.RecordBytes(ctx, tid)
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
func (b *Broker) RecordBytes(ctx context.Context, tid string) (int64, error) {
	s, err := b.js.Stream(ctx, subjects.Records(tid))
	if err != nil {
		return 0, err
	}
	return int64(min(s.CachedInfo().State.Bytes, math.MaxInt64)), nil
}

// Trainers lists the trainers that have a queue.
func (b *Broker) Trainers(ctx context.Context) ([]string, error) {
	return b.TrainersWith(ctx, subjects.AnyQueue)
}

// TrainersWith lists the trainers with a stream for messages of a subject.
func (b *Broker) TrainersWith(ctx context.Context, subject string) ([]string, error) {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	names := b.js.StreamNames(op, jetstream.WithStreamListSubject(subject))
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

// TellTrainers tells all workers that a trainer's streams were made or changed.
// It may be lost: workers also look by themselves.
func (b *Broker) TellTrainers(tid string) {
	if err := b.bulk.Publish(subjects.WorkerTrainers, []byte(tid)); err != nil {
		b.log.Debug().Err(err).Str("trainer", tid).Msg("the workers were not told of a trainer")
	}
}

// opener makes the missing streams of a trainer: a worker makes them itself, a
// trainer asks a worker.
type opener func(ctx context.Context, tid string) error

// ReopenWith sets the function that makes the missing streams of a trainer again:
// a worker makes them itself, a trainer asks a worker. Without it they stay missing.
func (b *Broker) ReopenWith(open func(ctx context.Context, tid string) error) {
	o := opener(open)
	b.opener.Store(&o)
}

// reopen makes the missing streams of the trainer that has this stream, if err
// says that the stream is missing. It returns true if the streams exist again.
func (b *Broker) reopen(ctx context.Context, stream string, err error) bool {
	open := b.opener.Load()
	tid, ok := subjects.TrainerOfStream(stream)
	if open == nil || !ok || !IsMissing(err) {
		return false
	}
	if err := (*open)(ctx, tid); err != nil {
		b.log.Debug().Err(err).Str("stream", stream).Msg("a missing stream was not made again")
		return false
	}
	return true
}

// ReopenFor is reopen for the stream that stores the messages of a subject.
func (b *Broker) ReopenFor(ctx context.Context, subject string, err error) {
	if tid, ok := subjects.TrainerOf(subject); ok {
		b.reopen(ctx, subjects.Queue(tid), err)
	}
}
