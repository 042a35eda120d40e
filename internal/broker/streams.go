package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/subjects"
)

// StreamsConfig sizes the streams. A value of 0 keeps the value of an existing
// stream; a new stream gets the default.
type StreamsConfig struct {
	Replicas int    // of every stream; 1 on one server, 3 on a cluster. Default 1
	Versions int64  // of a record that the server keeps, the newest of which counts. Default 1
	Timing   Timing // default DefaultTiming
	// Trainer has the settings of trainers without settings of their own. A value
	// of 0 is that of DefaultTrainer.
	Trainer TrainerSettings
}

const (
	eventRetention = 72 * time.Hour
	// maxDeadEach bounds the dead messages of one trainer and reason, so that no trainer
	// pushes out another's.
	maxDeadEach    = 500
	maxEventBytes  = 4 << 30 // of all events
	minStreamBytes = 2 << 20 // a larger stream is made smaller on a server without room for it
)

// Setup creates the missing ones of the streams and consumers that all trainers
// share, and updates existing ones to this configuration. Every worker may call
// it.
func (b *Broker) Setup(ctx context.Context, c StreamsConfig) error {
	c, err := b.filled(ctx, c)
	if err != nil {
		return err
	}
	b.setup.Store(&c)
	for _, s := range streamConfigs(c) {
		if err := b.setUp(ctx, s); err != nil {
			return fmt.Errorf("set up stream %s: %w", s.Name, err)
		}
	}
	if _, err := b.js.CreateOrUpdateConsumer(ctx, subjects.StreamPlain, consumerConfig(subjects.ConsumerPlain, subjects.Requests, c)); err != nil {
		return fmt.Errorf("set up the consumer of %s: %w", subjects.Requests, err)
	}
	return nil
}

// setUp creates a stream, or updates one that differs. A stream for which the
// server has no more room keeps its size. A cluster whose streams have reserved all
// room refuses every update, so none is sent that would change nothing.
func (b *Broker) setUp(ctx context.Context, want jetstream.StreamConfig) error {
	there, err := b.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = b.sized(ctx, want, b.js.CreateOrUpdateStream)
		return err
	}
	if err != nil {
		return err
	}
	is := there.CachedInfo().Config
	if sameConfig(is, want) {
		return nil
	}
	if _, err = b.js.UpdateStream(ctx, want); !noRoom(err) {
		return err
	}
	if want.MaxBytes = is.MaxBytes; sameConfig(is, want) {
		return nil
	}
	_, err = b.js.UpdateStream(ctx, want)
	return err
}

// sameConfig reports whether the server's configuration of a stream is the wanted
// one. For an absent limit the server writes -1, and it adds metadata and the
// default of Duplicates.
func sameConfig(there, want jetstream.StreamConfig) bool {
	for _, c := range []*jetstream.StreamConfig{&there, &want} {
		c.MaxMsgs, c.MaxBytes, c.MaxMsgsPerSubject = bound(c.MaxMsgs), bound(c.MaxBytes), bound(c.MaxMsgsPerSubject)
		c.MaxConsumers, c.MaxMsgSize = max(c.MaxConsumers, 0), max(c.MaxMsgSize, 0)
		c.Metadata = maps.Clone(c.Metadata)
		maps.DeleteFunc(c.Metadata, func(key, _ string) bool { return strings.HasPrefix(key, "_nats.") })
		if len(c.Metadata) == 0 {
			c.Metadata = nil
		}
	}
	want.Duplicates = cmp.Or(want.Duplicates, there.Duplicates)
	return reflect.DeepEqual(there, want)
}

// filled fills in the defaults of a configuration.
func (b *Broker) filled(ctx context.Context, c StreamsConfig) (StreamsConfig, error) {
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	c.Trainer = c.Trainer.or(DefaultTrainer())
	if c.Replicas == 0 {
		s, err := b.js.Stream(ctx, subjects.StreamPlain)
		switch {
		case err == nil:
			c.Replicas = s.CachedInfo().Config.Replicas
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return c, fmt.Errorf("look for stream %s: %w", subjects.StreamPlain, err)
		}
	}
	c.Replicas = cmp.Or(c.Replicas, 1)
	return c, nil
}

// sized makes a stream with put. If the server has no room for its MaxBytes,
// which it reserves, the stream gets a smaller size, which leaves most of the room
// to other streams.
func (b *Broker) sized(ctx context.Context, s jetstream.StreamConfig, put func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (jetstream.Stream, error) {
	wanted := s.MaxBytes
	made, err := put(ctx, s)
	for ; noRoom(err) && s.MaxBytes > minStreamBytes; made, err = put(ctx, s) {
		s.MaxBytes /= 8
	}
	if err == nil && s.MaxBytes != wanted {
		s.MaxBytes = max(s.MaxBytes/8, min(s.MaxBytes, minStreamBytes))
		if made, err = b.js.UpdateStream(ctx, s); err != nil {
			return nil, err
		}
		b.log.Info().Str("stream", s.Name).Int64("bytes", s.MaxBytes).Int64("wanted", wanted).Msg("the server has no room for a stream of the wanted size; it is smaller")
	}
	return made, err
}

// SetupWhenThere calls Setup and repeats it while the server does not answer or
// its cluster has no leader yet, until the context ends.
func (b *Broker) SetupWhenThere(ctx context.Context, c StreamsConfig) error {
	for try := 0; ; try++ {
		err := b.Setup(ctx, c)
		if err == nil || ctx.Err() != nil || Rejected(err) && !Passing(err) {
			return err
		}
		b.log.Warn().Err(err).Msg("the streams cannot be set up yet")
		if perr := wire.Pause(ctx, wire.Backoff(try)); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

// noRoom reports whether the server lacks the space that a stream reserves.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == wire.CodeStorage || api.ErrorCode == wire.CodeResources || api.ErrorCode == wire.CodePeers)
}

// Restore creates the shared streams that the server has lost: those in memory
// after a restart, all of them after the loss of its store. The streams of a
// trainer are created when the trainer or one of its rollouts needs them.
func (b *Broker) Restore(ctx context.Context, t Timing) error { return b.Setup(ctx, b.wanted(t)) }

// wanted is the configuration of the last Setup. If there was none, existing
// streams keep theirs.
func (b *Broker) wanted(t Timing) StreamsConfig {
	if known := b.setup.Load(); known != nil {
		return *known
	}
	return StreamsConfig{Timing: t}
}

func memoryStreams(c StreamsConfig) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		memoryStream(subjects.StreamLeases, subjects.LeaseFilter, c),
		readable(memoryStream(subjects.StreamWorkers, subjects.PresenceFilter, c)),
		memoryStream(subjects.StreamControl, subjects.ControlFilter, c),
	}
}

func streamConfigs(c StreamsConfig) []jetstream.StreamConfig {
	plain := queueStream(subjects.StreamPlain, []string{subjects.Requests}, c)
	plain.MaxBytes = 0 // only people with the workers' rights write to it
	return append(memoryStreams(c),
		plain,
		jetstream.StreamConfig{
			Name: subjects.StreamEvents, Subjects: []string{subjects.EventFilter}, AllowDirect: true,
			MaxAge: eventRetention, MaxBytes: maxEventBytes, Discard: jetstream.DiscardOld, Compression: jetstream.S2Compression, Replicas: c.Replicas,
			PersistMode: eventPersistence(c.Replicas),
		},
		jetstream.StreamConfig{
			Name: subjects.StreamDead, Subjects: []string{subjects.DeadFilter},
			MaxMsgsPerSubject: maxDeadEach, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
		},
	)
}

// queueStream configures a queue of requests with the default bounds.
func queueStream(name string, filters []string, c StreamsConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: filters,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxMsgs: c.Trainer.MaxQueue, MaxBytes: c.Trainer.MaxQueueBytes,
		Duplicates: 2 * time.Minute, Replicas: c.Replicas, AllowAtomicPublish: true,
	}
}

// objectStream configures the stream of an object store in the layout of NATS
// ADR-20, but without direct gets: the server publishes the answer to a direct
// get, a raw message, on any subject that the reader names, so a trainer could
// publish to any subject.
func objectStream(bucket string, size int64, c StreamsConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subjects.ObjectStream(bucket), Subjects: []string{subjects.ObjectChunks(bucket, ">"), subjects.ObjectMetas(bucket)},
		Discard: jetstream.DiscardNew, MaxBytes: size, AllowRollup: true, AllowMsgTTL: true, Replicas: c.Replicas,
	}
}

// readable allows direct gets, by which people read a stream without a consumer.
func readable(s jetstream.StreamConfig) jetstream.StreamConfig {
	s.AllowDirect = true
	return s
}

// eventPersistence selects asynchronous writes for events where the server
// supports them: nothing depends on events, and a synced write of each would slow
// the rollouts down.
func eventPersistence(replicas int) jetstream.PersistModeType {
	if replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

// memoryStream configures the stream of a key-value bucket (NATS ADR-8) with
// values that expire unless they are renewed. Without direct gets, every read
// goes through the leader.
func memoryStream(name, filter string, c StreamsConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{filter}, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1, MaxAge: c.Timing.Lease,
		Discard: jetstream.DiscardOld, AllowRollup: true, Replicas: c.Replicas, Duplicates: min(c.Timing.Lease, 2*time.Minute),
	}
}

// ConsumerConfig returns the configuration of a consumer of a queue. If this
// connection has not called Setup, the consumer gets this timing.
func (b *Broker) ConsumerConfig(ctx context.Context, name, filter string, t Timing) (jetstream.ConsumerConfig, error) {
	c, err := b.filled(ctx, b.wanted(t))
	if err != nil {
		return jetstream.ConsumerConfig{}, err
	}
	return consumerConfig(name, filter, c), nil
}

func consumerConfig(name, filter string, c StreamsConfig) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.Timing.AckWait,
		MaxAckPending: 100_000, MaxWaiting: 8192, MaxDeliver: -1, Replicas: c.Replicas,
	}
}
