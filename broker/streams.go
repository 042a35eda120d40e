package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/subjects"
)

// StreamsConfig sizes the streams.
type StreamsConfig struct {
	Replicas int   // of every stream; 1 on one server, 3 on a cluster. Default 1
	MaxQueue int64 // requests that may wait; beyond it submits are refused. Default 1,000,000
}

const (
	ackWait        = 60 * time.Second
	eventRetention = 72 * time.Hour
	leaseTTL       = 40 * time.Second

	bucketWorkers = "workers"
)

// Setup creates what is missing of streams, consumers and buckets, and brings
// what is there to this configuration. It is safe to call from every worker.
func (b *Broker) Setup(ctx context.Context, c StreamsConfig) error {
	c.Replicas = max(c.Replicas, 1)
	if c.MaxQueue == 0 {
		c.MaxQueue = 1_000_000
	}
	for _, s := range streamConfigs(c) {
		if _, err := b.js.CreateOrUpdateStream(ctx, s); err != nil {
			return fmt.Errorf("set up stream %s: %w", s.Name, err)
		}
	}
	for _, filter := range subjects.RequestFilters() {
		_, err := b.js.CreateOrUpdateConsumer(ctx, subjects.StreamRequests, consumerConfig(filter, c.Replicas))
		if err != nil {
			return fmt.Errorf("set up the consumer of %s: %w", filter, err)
		}
	}
	for _, kv := range []jetstream.KeyValueConfig{
		{Bucket: "lease", TTL: leaseTTL, Storage: jetstream.MemoryStorage, LimitMarkerTTL: time.Minute},
		{Bucket: bucketWorkers, TTL: leaseTTL, Storage: jetstream.MemoryStorage, LimitMarkerTTL: time.Minute},
		{Bucket: "control"},
	} {
		kv.Replicas = c.Replicas
		if _, err := b.js.CreateOrUpdateKeyValue(ctx, kv); err != nil {
			return fmt.Errorf("set up bucket %s: %w", kv.Bucket, err)
		}
	}
	return nil
}

func streamConfigs(c StreamsConfig) []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
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
			MaxAge: eventRetention, MaxBytes: 4 << 30, Discard: jetstream.DiscardOld, Compression: jetstream.S2Compression, Replicas: c.Replicas,
		},
		{
			Name: subjects.StreamDead, Subjects: []string{subjects.DeadFilter},
			MaxMsgs: 10_000, Discard: jetstream.DiscardOld, Replicas: c.Replicas,
		},
		objectStream(subjects.BucketTasks, c.Replicas),
		objectStream(subjects.BucketArtifact, c.Replicas),
	}
}

// objectStream is the stream of an object store, as NATS ADR-20 lays it out,
// but without direct gets: those answer with the raw message to any subject
// that the reader names, so a trainer could have the server publish for it.
func objectStream(bucket string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "OBJ_" + bucket, Subjects: []string{"$O." + bucket + ".C.>", "$O." + bucket + ".M.>"},
		Discard: jetstream.DiscardNew, AllowRollup: true, Replicas: replicas,
	}
}

func consumerConfig(filter string, replicas int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: subjects.ConsumerOf(filter), FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		MaxAckPending: 100_000, MaxWaiting: 8192, MaxDeliver: -1, Replicas: replicas,
	}
}
