package chaos_test

import (
	"github.com/turngate/turngate/subjects"
)

// recordSubject begins the pattern of the subjects of records.
const recordSubject = `^record\.[a-z0-9_]+\.[\w-]+\.`

// queuesOf are the streams with the requests of trainers, and the plain one.
func queuesOf(trainers []string) []string {
	out := []string{subjects.StreamPlain}
	for _, t := range trainers {
		out = append(out, subjects.Queue(t))
	}
	return out
}

// bucketsOf are the buckets of trainers.
func bucketsOf(trainers ...string) []string {
	var out []string
	for _, t := range trainers {
		out = append(out, subjects.TasksBucket(t), subjects.ArtifactsBucket(t))
	}
	return out
}
