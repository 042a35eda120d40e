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

// File is the content of a file to store. It is read twice, to find its digest and to send
// it.
type File struct {
	Size int64 // in bytes
	// Open returns a reader of the whole content, the same each time.
	Open func() io.Reader
}

// FileOf returns a file with this content.
func FileOf(data []byte) File {
	return File{Size: int64(len(data)), Open: func() io.Reader { return bytes.NewReader(data) }}
}

// digest returns the sha256 of the file. It fails if the file does not have its size.
func (f File) digest() ([]byte, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, f.Open())
	if err == nil && n != f.Size {
		err = fmt.Errorf("the file has %d bytes, want %d", n, f.Size)
	}
	return sum.Sum(nil), err
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
	return h.put(ctx, subjects.TasksBucket(tid), FileOf(data), 0)
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
// too. 0 keeps the file for ever. It takes memory for one chunk of the file.
func (h *Objects) PutArtifact(ctx context.Context, tid, name string, file File, keep time.Duration) (schema.Artifact, error) {
	if file.Size > maxArtifact {
		return schema.Artifact{}, &TooLargeError{What: "artifact " + name, Size: uint64(file.Size), Limit: maxArtifact}
	}
	sha, err := h.put(ctx, subjects.ArtifactsBucket(tid), file, keep)
	return schema.Artifact{Name: name, Size: file.Size, SHA256: sha}, err
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

func (h *Objects) put(ctx context.Context, bucket string, file File, keep time.Duration) (sha string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %d bytes into object store %s: %w", file.Size, bucket, err)
		}
	}()
	sum, err := file.digest()
	if err != nil {
		return "", err
	}
	sha = hex.EncodeToString(sum)
	to := h.bucket(bucket)
	there, err := to.stays(ctx, sha, file.Size, keep)
	if there || err != nil {
		return sha, err
	}
	life := time.Duration(0)
	if keep > 0 {
		life = 2 * (keep + commitWithin)
	}
	return sha, to.write(ctx, sha, sum, file, life)
}

// PutBody stores a body of a message in a bucket, also if the bucket has it
// already, and returns its sha256. The server deletes it after life.
func (h *Objects) PutBody(ctx context.Context, bucket string, data []byte, life time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	return sha, h.bucket(bucket).write(ctx, sha, sum[:], FileOf(data), life)
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
// content, or with a description or chunks that no object has.
var ErrDigest = errors.New("content does not match its sha256")
