package broker

import (
	"cmp"
	"errors"
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

// bound is a limit of a stream, for which the server writes -1 if there is none.
func bound(limit int64) int64 { return max(limit, 0) }

// noRoom reports whether the server lacks the space that a stream reserves.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == wire.CodeStorage || api.ErrorCode == wire.CodeResources || api.ErrorCode == wire.CodePeers)
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

func consumerConfig(name, filter string, c StreamsConfig) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: filter,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.Timing.AckWait,
		MaxAckPending: 100_000, MaxWaiting: 8192, MaxDeliver: -1, Replicas: c.Replicas,
	}
}
