package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/subjects"
)

// StreamsConfig sizes the streams. What is 0 is left as it is on the server,
// or made with its default.
type StreamsConfig struct {
	Replicas int    // of every stream; 1 on one server, 3 on a cluster. Default 1
	MaxQueue int64  // requests that may wait; beyond it submits are refused. Default 1,000,000
	Timing   Timing // default DefaultTiming
}

const (
	eventRetention = 72 * time.Hour
	maxEventBytes  = 4 << 30  // of all events
	minEventBytes  = 16 << 20 // less than this is not asked for
)

// Setup creates what is missing of streams and consumers, and brings what is
// there to this configuration. It is safe to call from every worker.
func (b *Broker) Setup(ctx context.Context, c StreamsConfig) error {
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	if s, err := b.js.Stream(ctx, subjects.StreamRequests); err == nil {
		there := s.CachedInfo().Config
		c.Replicas, c.MaxQueue = cmp.Or(c.Replicas, there.Replicas), cmp.Or(c.MaxQueue, there.MaxMsgs)
	} else if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("look for stream %s: %w", subjects.StreamRequests, err)
	}
	c.Replicas, c.MaxQueue = cmp.Or(c.Replicas, 1), cmp.Or(c.MaxQueue, 1_000_000)
	b.setup.Store(&c)
	for _, s := range streamConfigs(c) {
		_, err := b.js.CreateOrUpdateStream(ctx, s)
		for ; noRoom(err) && s.MaxBytes > minEventBytes; _, err = b.js.CreateOrUpdateStream(ctx, s) {
			s.MaxBytes /= 4 // the server sets aside what a stream may take
		}
		if err != nil {
			return fmt.Errorf("set up stream %s: %w", s.Name, err)
		}
	}
	for _, filter := range subjects.RequestFilters() {
		_, err := b.js.CreateOrUpdateConsumer(ctx, subjects.StreamRequests, consumerConfig(filter, c))
		if err != nil {
			return fmt.Errorf("set up the consumer of %s: %w", filter, err)
		}
	}
	return nil
}

// SetupWhenThere is Setup, again and again while the server does not answer or
// its cluster has no leader yet, until the context ends.
func (b *Broker) SetupWhenThere(ctx context.Context, c StreamsConfig) error {
	for try := 0; ; try++ {
		err := b.Setup(ctx, c)
		if err == nil || ctx.Err() != nil || refused(err) && !passing(err) {
			return err
		}
		b.log.Warn().Err(err).Msg("the streams cannot be set up yet")
		if perr := pause(ctx, backoff(try)); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

// noRoom reports whether the server has not the room that a stream asks for.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == codeStorage || api.ErrorCode == codeResources || api.ErrorCode == codePeers)
}

// restore makes the streams again that the server does not have any more: those
// in memory after it was started anew, all of them after its store was lost.
func (b *Broker) restore(ctx context.Context, t Timing) error {
	c := StreamsConfig{Timing: t}
	if known := b.setup.Load(); known != nil {
		c = *known
	}
	return b.Setup(ctx, c)
}

func memoryStreams(c StreamsConfig) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		memoryStream(subjects.StreamLeases, subjects.LeaseFilter, c),
		memoryStream(subjects.StreamWorkers, subjects.PresenceFilter, c),
		memoryStream(subjects.StreamControl, subjects.ControlFilter, c),
	}
}

func streamConfigs(c StreamsConfig) []jetstream.StreamConfig {
	return append(memoryStreams(c), []jetstream.StreamConfig{
		{
			Name: subjects.StreamRequests, Subjects: subjects.RequestFilters(),
			Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxMsgs: c.MaxQueue,
			Duplicates: 2 * time.Minute, Replicas: c.Replicas, AllowAtomicPublish: true,
		},
		{
			// Reads that decide go through the leader, so direct gets stay off.
			Name: subjects.StreamRollouts, Subjects: subjects.RolloutFilters(),
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardOld, Replicas: c.Replicas, AllowAtomicPublish: true,
		},
		{
			Name: subjects.StreamEvents, Subjects: []string{subjects.EventFilter},
			MaxAge: eventRetention, MaxBytes: maxEventBytes, Discard: jetstream.DiscardOld, Compression: jetstream.S2Compression, Replicas: c.Replicas,
			PersistMode: eventPersistence(c.Replicas),
		},
		{
			Name: subjects.StreamDead, Subjects: []string{subjects.DeadFilter},
			MaxMsgs: 10_000, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
		},
		objectStream(subjects.BucketTasks, c.Replicas),
		objectStream(subjects.BucketArtifact, c.Replicas),
	}...)
}

// objectStream is the stream of an object store, as NATS ADR-20 lays it out,
// but without direct gets: those answer with the raw message to any subject
// that the reader names, so a trainer could have the server publish for it.
func objectStream(bucket string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subjects.ObjectStream(bucket), Subjects: []string{subjects.ObjectChunks(bucket, ">"), subjects.ObjectMetas(bucket)},
		Discard: jetstream.DiscardNew, AllowRollup: true, AllowMsgTTL: true, Replicas: replicas,
	}
}

// eventPersistence lets events be written behind, where the server can: they
// are for people, and a synced write of each would cost the rollouts.
func eventPersistence(replicas int) jetstream.PersistModeType {
	if replicas == 1 {
		return jetstream.AsyncPersistMode
	}
	return jetstream.DefaultPersistMode
}

// memoryStream is the stream of a bucket of small values (NATS ADR-8) that
// vanish when they are not renewed. Direct gets stay off, so that reads that
// decide go through the leader.
func memoryStream(name, filter string, c StreamsConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{filter}, Storage: jetstream.MemoryStorage, MaxMsgsPerSubject: 1, MaxAge: c.Timing.Lease,
		Discard: jetstream.DiscardOld, AllowRollup: true, Replicas: c.Replicas, Duplicates: min(c.Timing.Lease, 2*time.Minute),
	}
}

func consumerConfig(filter string, c StreamsConfig) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: subjects.ConsumerOf(filter), FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.Timing.AckWait,
		MaxAckPending: 100_000, MaxWaiting: 8192, MaxDeliver: -1, Replicas: c.Replicas,
	}
}
