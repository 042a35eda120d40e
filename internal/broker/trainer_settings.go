package broker

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
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

// settingsOf reads the settings from the configurations of a trainer's streams,
// in the order of trainerStreams.
func settingsOf(streams []jetstream.StreamConfig) TrainerSettings {
	bundles, artifacts, queue := streams[0], streams[1], streams[3]
	return TrainerSettings{
		MaxQueue: max(queue.MaxMsgs, 0), MaxQueueBytes: max(queue.MaxBytes, 0), MaxBundleBytes: max(bundles.MaxBytes, 0),
		MaxArtifactBytes: max(artifacts.MaxBytes, 0), MaxRecordBytes: RecordBound(queue), Weight: WeightOf(queue),
	}
}
