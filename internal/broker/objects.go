package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Objects stores files: bundles of tasks, artifacts, and bodies of large messages.
// While the server cannot be reached, every method tries again until its context
// ends.
type Objects struct {
	*link
	streams  *Streams
	messages *Messages
}

func (h *Objects) bucket(name string) *bucket {
	return &bucket{Objects: h, name: name, stream: subjects.ObjectStream(name)}
}

// Largest files, in bytes.
const (
	maxBundle   = 2 << 30
	maxArtifact = 256 << 20
)

// PutBundle stores a trainer's task bundle and returns its sha256, which is its
// name. A bundle that the store has already is not sent again. A *FullError means
// that the trainer's bundles have reached their bound.
func (h *Objects) PutBundle(ctx context.Context, tid string, data []byte) (string, error) {
	if len(data) > maxBundle {
		return "", &TooLargeError{What: "task bundle", Size: uint64(len(data)), Limit: maxBundle}
	}
	return h.put(ctx, subjects.TasksBucket(tid), data, 0)
}

// Bundle reads a trainer's task bundle and checks its sha256. Errors wrap
// ErrNotFound or ErrDigest, or are a *TooLargeError.
func (h *Objects) Bundle(ctx context.Context, tid, sha string) ([]byte, error) {
	return h.Object(ctx, subjects.TasksBucket(tid), sha, maxBundle)
}

// CopyBundle is Bundle, but writes the bundle to a writer. After an error the writer
// has a part of the bundle, or a bundle with another sha256.
func (h *Objects) CopyBundle(ctx context.Context, tid, sha string, to io.Writer) error {
	from := h.bucket(subjects.TasksBucket(tid))
	info, err := from.find(ctx, sha, maxBundle)
	if err != nil {
		return err
	}
	return from.copy(ctx, sha, info, to)
}

// PutArtifact stores a file of a trainer's rollout. A *FullError means that the
// trainer's artifacts have reached their bound. keep is the retention of finished
// rollouts. The server deletes the file after twice the retention and an hour;
// while enough of this time is left, another rollout with the same file uses it
// too. 0 keeps the file for ever.
func (h *Objects) PutArtifact(ctx context.Context, tid, name string, data []byte, keep time.Duration) (schema.Artifact, error) {
	if len(data) > maxArtifact {
		return schema.Artifact{}, &TooLargeError{What: "artifact " + name, Size: uint64(len(data)), Limit: maxArtifact}
	}
	sha, err := h.put(ctx, subjects.ArtifactsBucket(tid), data, keep)
	return schema.Artifact{Name: name, Size: int64(len(data)), SHA256: sha}, err
}

// Artifact reads a file of a trainer's rollout and checks its sha256. It fails
// with the errors of Bundle.
func (h *Objects) Artifact(ctx context.Context, tid, sha string) ([]byte, error) {
	return h.Object(ctx, subjects.ArtifactsBucket(tid), sha, maxArtifact)
}

// CopyArtifact is Artifact, but writes the file to a writer. After an error the writer has
// a part of the file, or a file with another sha256.
func (h *Objects) CopyArtifact(ctx context.Context, tid, sha string, to io.Writer) error {
	from := h.bucket(subjects.ArtifactsBucket(tid))
	info, err := from.find(ctx, sha, maxArtifact)
	if err != nil {
		return err
	}
	return from.copy(ctx, sha, info, to)
}

// commitWithin is the time that a file is kept in addition to the retention,
// since the result of its rollout is stored later than the file.
const commitWithin = 30 * time.Minute

func (h *Objects) put(ctx context.Context, bucket string, data []byte, keep time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	to := h.bucket(bucket)
	there, err := to.stays(ctx, sha, len(data), keep)
	if err == nil && !there {
		life := time.Duration(0)
		if keep > 0 {
			life = 2 * (keep + commitWithin)
		}
		err = to.write(ctx, sha, sum[:], data, life)
	}
	if err != nil {
		return "", fmt.Errorf("put %d bytes into object store %s: %w", len(data), bucket, err)
	}
	return sha, nil
}

// PutBody stores a body of a message in a bucket, also if the bucket has it
// already, and returns its sha256. The server deletes it after life.
func (h *Objects) PutBody(ctx context.Context, bucket string, data []byte, life time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	return sha, h.bucket(bucket).write(ctx, sha, sum[:], data, life)
}

// Object reads an object of up to limit bytes, chunk by chunk, by sequence, and
// checks its sha256. It fails with the errors of Bundle. The reader of the client
// library creates a consumer, for which a trainer has no permission.
func (h *Objects) Object(ctx context.Context, bucket, sha string, limit int64) ([]byte, error) {
	from := h.bucket(bucket)
	info, err := from.find(ctx, sha, limit)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, info.Size))
	if err := from.copy(ctx, sha, info, out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// ErrDigest is returned for an object with a name that is not the sha256 of its
// content, or with a description or chunks that are not those of an object.
var ErrDigest = errors.New("content does not match its sha256")
