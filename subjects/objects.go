package subjects

import "encoding/base64"

// Object stores have the layout of NATS ADR-20. The name of an object is its
// sha256.

// ObjectStream is the stream of a bucket.
func ObjectStream(bucket string) string { return "OBJ_" + bucket }

// ObjectChunks is the subject of the chunks of an object. id is the NUID of one
// write of the object, or ">" for all chunks of the bucket.
func ObjectChunks(bucket, id string) string { return "$O." + bucket + ".C." + id }

// ObjectMeta is the subject of an object's metadata, which names its chunks.
func ObjectMeta(bucket, name string) string {
	return "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// ObjectMetas selects the metadata of all objects of a bucket.
func ObjectMetas(bucket string) string { return "$O." + bucket + ".M.>" }
