package subjects

import "encoding/base64"

// Object stores, as NATS ADR-20 lays them out. Objects are named by their
// sha256.
const (
	BucketTasks    = "tasks"     // task bundles, and large answers
	BucketArtifact = "artifacts" // what rollouts leave, and large calls
)

// ObjectStream is the stream that a bucket is.
func ObjectStream(bucket string) string { return "OBJ_" + bucket }

// ObjectChunks carries the pieces of one writing of an object; id is ">" for
// all of the bucket.
func ObjectChunks(bucket, id string) string { return "$O." + bucket + ".C." + id }

// ObjectMeta carries what an object is and which pieces are its own.
func ObjectMeta(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// ObjectMetas is ObjectMeta of all objects of a bucket.
func ObjectMetas(bucket string) string { return "$O." + bucket + ".M.>" }
