package subjects

import (
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Each trainer has streams of its own: a queue, records and two buckets. So
// everything that the server counts or compares in one stream is separate for each
// trainer: message ids, open batches, sizes, roll-ups.

const (
	queuePrefix   = "REQ_"
	recordsPrefix = "REC_"
)

// Queue is the stream of a trainer's requests, a work queue.
func Queue(trainer string) string { return queuePrefix + trainer }

// Records is the stream of a trainer's records: for each rollout the last
// request copy, state and result.
func Records(trainer string) string { return recordsPrefix + trainer }

// TasksBucket is the object store of a trainer's bundles and large answers.
func TasksBucket(trainer string) string { return "tasks_" + trainer }

// ArtifactsBucket is the object store of a trainer's artifacts and large calls.
func ArtifactsBucket(trainer string) string { return "artifacts_" + trainer }

// StreamsOf lists the streams of a trainer. The queue is the last one: a trainer
// with a queue has the others too.
func StreamsOf(trainer string) []string {
	return []string{ObjectStream(TasksBucket(trainer)), ObjectStream(ArtifactsBucket(trainer)), Records(trainer), Queue(trainer)}
}

// TrainerOfStream returns the trainer that has a stream. ok is false for a stream
// that no single trainer has.
func TrainerOfStream(stream string) (trainer string, ok bool) {
	for _, prefix := range []string{queuePrefix, recordsPrefix, ObjectStream(TasksBucket("")), ObjectStream(ArtifactsBucket(""))} {
		if trainer, ok = strings.CutPrefix(stream, prefix); ok {
			return trainer, schema.CheckTrainer(trainer) == nil
		}
	}
	return "", false
}

// TrainerOf returns the trainer for which the messages of a subject are stored. ok
// is false for a subject that no trainer's streams store.
func TrainerOf(subject string) (trainer string, ok bool) {
	switch first, rest, _ := strings.Cut(subject, "."); first {
	case "rollout":
		trainer, ok = ParseRequest(subject)
		return trainer, ok && trainer != ""
	case "record", "parked":
		trainer, _, _ = strings.Cut(rest, ".")
		return trainer, schema.CheckTrainer(trainer) == nil
	case "$O":
		bucket, _, _ := strings.Cut(rest, ".")
		return TrainerOfStream(ObjectStream(bucket))
	default:
		return "", false
	}
}

// QueueOf is the stream that stores the requests of a lane's subject.
func QueueOf(subject string) string {
	if trainer, ok := ParseRequest(subject); ok && trainer != "" {
		return Queue(trainer)
	}
	return StreamPlain
}

// QueueFilters are the lanes of a trainer's queue, most urgent first.
func QueueFilters(trainer string) []string {
	out := make([]string, Lanes)
	for lane := range out {
		out[lane] = Request(lane, trainer)
	}
	return out
}

// AnyQueue is a subject that the queues of all trainers have, and no other
// stream.
const AnyQueue = Requests + ".p0.*"

// ConsumerPlain is the durable consumer of StreamPlain.
const ConsumerPlain = "workers"

// ConsumerOf is the durable consumer of a lane of a trainer's queue.
func ConsumerOf(lane int) string { return ConsumerPlain + "-p" + strconv.Itoa(lane) }

const (
	kindRequest = ".request"
	kindState   = ".state"
	kindResult  = ".result"
)

func record(id schema.ID, kind string) string {
	return "record." + id.Trainer() + "." + string(id) + kind
}

// RequestCopy is the subject of the copy of a request that its worker keeps.
func RequestCopy(id schema.ID) string { return record(id, kindRequest) }

// State is the subject of a rollout's state record.
func State(id schema.ID) string { return record(id, kindState) }

// Result is the subject of a rollout's only result.
func Result(id schema.ID) string { return record(id, kindResult) }

// RecordsOf selects the records of one rollout.
func RecordsOf(id schema.ID) string { return record(id, ".*") }

// RecordFilters are the subjects of a trainer's records.
func RecordFilters(trainer string) []string {
	return []string{"record." + trainer + ".*" + kindRequest, StateFilter(trainer), ResultFilter(trainer)}
}

// StateFilter selects the states of a trainer's rollouts.
func StateFilter(trainer string) string { return "record." + trainer + ".*" + kindState }

// ResultFilter selects the results of a trainer's rollouts.
func ResultFilter(trainer string) string { return "record." + trainer + ".*" + kindResult }

// AnyRecord selects the records of all trainers.
const AnyRecord = "record.>"

// ParseRecord reads the rollout's id from the subject of one of its records. ok
// is false if the subject names another trainer than the id.
func ParseRecord(subject string) (id schema.ID, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 4 || t[0] != "record" {
		return "", false
	}
	id, err := schema.ParseID(t[2])
	return id, err == nil && id.Trainer() == t[1]
}
