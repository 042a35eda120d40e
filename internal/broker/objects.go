package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// While the server cannot be reached, every function of this file tries again
// until its context ends.

// Largest files, in bytes.
const (
	maxBundle   = 256 << 20
	maxArtifact = 256 << 20
)

// PutBundle stores a trainer's task bundle and returns its sha256, which is its
// name. A bundle that the store has already is not sent again. A *FullError means
// that the trainer's bundles have reached their bound.
func (b *Broker) PutBundle(ctx context.Context, tid string, data []byte) (string, error) {
	if len(data) > maxBundle {
		return "", &TooLargeError{What: "task bundle", Size: uint64(len(data)), Limit: maxBundle}
	}
	return b.putObject(ctx, subjects.TasksBucket(tid), data, 0)
}

// Bundle reads a trainer's task bundle and checks its sha256. Errors wrap
// ErrNotFound or ErrDigest, or are a *TooLargeError.
func (b *Broker) Bundle(ctx context.Context, tid, sha string) ([]byte, error) {
	return b.Object(ctx, subjects.TasksBucket(tid), sha, maxBundle)
}

// PutArtifact stores a file of a trainer's rollout. A *FullError means that the
// trainer's artifacts have reached their bound. keep is the retention of finished
// rollouts. The server deletes the file after twice the retention and an hour;
// while enough of this time is left, another rollout with the same file uses it
// too. 0 keeps the file for ever.
func (b *Broker) PutArtifact(ctx context.Context, tid, name string, data []byte, keep time.Duration) (schema.Artifact, error) {
	if len(data) > maxArtifact {
		return schema.Artifact{}, &TooLargeError{What: "artifact " + name, Size: uint64(len(data)), Limit: maxArtifact}
	}
	sha, err := b.putObject(ctx, subjects.ArtifactsBucket(tid), data, keep)
	return schema.Artifact{Name: name, Size: int64(len(data)), SHA256: sha}, err
}

// Artifact reads a file of a trainer's rollout and checks its sha256. It fails
// with the errors of Bundle.
func (b *Broker) Artifact(ctx context.Context, tid, sha string) ([]byte, error) {
	return b.Object(ctx, subjects.ArtifactsBucket(tid), sha, maxArtifact)
}

// commitWithin is the time that a file is kept in addition to the retention,
// since the result of its rollout is stored later than the file.
const commitWithin = 30 * time.Minute

func (b *Broker) putObject(ctx context.Context, bucket string, data []byte, keep time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	there, err := b.objectStays(ctx, bucket, sha, len(data), keep)
	if err == nil && !there {
		life := time.Duration(0)
		if keep > 0 {
			life = 2 * (keep + commitWithin)
		}
		err = b.writeObject(ctx, bucket, sha, sum[:], data, life)
	}
	if err != nil {
		return "", fmt.Errorf("put %d bytes into object store %s: %w", len(data), bucket, err)
	}
	return sha, nil
}

// objectStays reports whether an object has a description with this size and stays
// for the duration keep; 0: for ever. It does not look at the chunks.
func (b *Broker) objectStays(ctx context.Context, bucket, name string, size int, keep time.Duration) (bool, error) {
	info, m, err := b.objectInfo(ctx, bucket, name)
	if errors.Is(err, ErrDigest) { // the caller replaces it
		return false, nil
	}
	if info == nil || err != nil {
		return false, err
	}
	if info.Size != uint64(size) || schema.CheckToken("nuid", info.NUID) != nil { // no reader accepts it
		return false, nil
	}
	text := m.Header.Get(jetstream.MsgTTLHeader)
	if text == "" {
		return true, nil
	}
	life, err := time.ParseDuration(text)
	if keep == 0 || err != nil {
		return false, nil //nolint:nilerr // the caller writes the object again
	}
	now, err := b.serverTime(ctx, subjects.ObjectStream(bucket))
	return err == nil && life-now.Sub(m.Time) >= keep+commitWithin, err
}

// serverTime returns the current time by the clock that gives a stream's messages
// their timestamps.
func (b *Broker) serverTime(ctx context.Context, stream string) (time.Time, error) {
	return Insist(ctx, b, "read the time of stream "+stream, func(ctx context.Context) (time.Time, error) {
		info, err := b.infoOf(ctx, stream)
		if err != nil {
			return time.Time{}, err
		}
		return info.TimeStamp, nil
	})
}

// PutBody stores a body of a message in a bucket, also if the bucket has it
// already, and returns its sha256. The server deletes it after life.
func (b *Broker) PutBody(ctx context.Context, bucket string, data []byte, life time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	return sha, b.writeObject(ctx, bucket, sha, sum[:], data, life)
}

// objectChunk is the largest part of an object in one message, in bytes.
const objectChunk = 1 << 20

// minChunk is the smallest part of an object but the last, in bytes. Without it an
// object of tiny parts would cost its reader millions of requests.
const minChunk = 1 << 10

// objectInfo returns the metadata of an object and the message that has it; nil
// if there is no such object.
func (b *Broker) objectInfo(ctx context.Context, bucket, name string) (*jetstream.ObjectInfo, *jetstream.RawStreamMsg, error) {
	m, err := Insist(ctx, b, "look up object "+name, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.Last(ctx, subjects.ObjectStream(bucket), subjects.ObjectMeta(bucket, name))
	})
	if m == nil || err != nil {
		return nil, nil, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, nil, fmt.Errorf("look up object %s: %w: %w", name, ErrDigest, err)
	}
	if info.Deleted {
		return nil, nil, nil
	}
	return &info, m, nil
}

// writeObject writes an object in the layout of NATS ADR-20. It replaces the
// writer of the client library, which publishes asynchronously, may leak a
// goroutine after a small object, and gives up when the connection is lost. The
// server deletes the object after life; 0: never. A *FullError means that there is
// no room for it.
func (b *Broker) writeObject(ctx context.Context, bucket, name string, sum, data []byte, life time.Duration) error {
	if err := b.hasRoom(ctx, bucket, len(data)); err != nil {
		return err
	}
	header := nats.Header{}
	if life > 0 {
		header[jetstream.MsgTTLHeader] = []string{life.String()}
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}},
		Bucket:     bucket, NUID: nuid.Next(), Size: uint64(len(data)), ModTime: time.Now().UTC(), Digest: "SHA-256=" + base64.URLEncoding.EncodeToString(sum),
	}
	room := int(min(objectChunk, max(b.bulk.MaxPayload()-headerRoom, headerRoom)))
	var last uint64
	for chunk := range slices.Chunk(data, room) {
		var err error
		if last, err = b.writeChunk(ctx, bucket, &nats.Msg{Subject: subjects.ObjectChunks(bucket, info.NUID), Header: maps.Clone(header), Data: chunk}, last); err != nil {
			b.removeChunks(ctx, bucket, info.NUID, err)
			return err
		}
		info.Chunks++
	}
	meta, err := json.Marshal(&info)
	if err != nil {
		return err
	}
	header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err = Insist(ctx, b, "name object "+name, func(ctx context.Context) (uint64, error) {
		seq, err := b.PutMsg(ctx, &nats.Msg{Subject: subjects.ObjectMeta(bucket, name), Header: header, Data: meta})
		return seq, b.asFull(ctx, bucket, err)
	})
	b.removeChunks(ctx, bucket, info.NUID, err)
	return err
}

// messageRoom is about the number of bytes that a stream stores for each message
// besides its body.
const messageRoom = 256

// hasRoom returns a *FullError if a bucket has no room for n bytes.
func (b *Broker) hasRoom(ctx context.Context, bucket string, n int) error {
	name := subjects.ObjectStream(bucket)
	_, err := Insist(ctx, b, "read the size of stream "+name, func(ctx context.Context) (struct{}, error) {
		info, err := b.infoOf(ctx, name)
		if err != nil {
			return struct{}{}, err
		}
		need := int64(n) + int64(n/objectChunk+2)*messageRoom
		if limit := info.Config.MaxBytes; limit > 0 && int64(info.State.Bytes)+need > limit {
			return struct{}{}, fullError(bucket, limit)
		}
		return struct{}{}, nil
	})
	return err
}

// infoOf reads the state of a stream, and makes a missing stream of a trainer
// again.
func (b *Broker) infoOf(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	s, err := b.FreshStream(ctx, name)
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// asFull returns a *FullError if err says that a bucket has reached its bound, and
// err otherwise.
func (b *Broker) asFull(ctx context.Context, bucket string, err error) error {
	if !IsFull(err) {
		return err
	}
	info, ierr := b.infoOf(ctx, subjects.ObjectStream(bucket))
	if ierr != nil {
		return errors.Join(err, ierr)
	}
	return fullError(bucket, info.Config.MaxBytes)
}

func fullError(bucket string, limit int64) *FullError {
	tid, _ := subjects.TrainerOfStream(subjects.ObjectStream(bucket))
	what := "artifacts"
	if bucket == subjects.TasksBucket(tid) {
		what = "bundles"
	}
	return &FullError{Trainer: tid, What: what, Limit: limit}
}

// removeChunks removes the stored chunks of an object that did not fit into its
// bucket. Only workers may delete chunks, so a trainer's chunks stay; hasRoom
// makes them rare.
func (b *Broker) removeChunks(ctx context.Context, bucket, id string, err error) {
	var full *FullError
	if !errors.As(err, &full) || bucket != subjects.ArtifactsBucket(full.Trainer) {
		return
	}
	s, serr := b.Stream(ctx, subjects.ObjectStream(bucket))
	if serr == nil {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		serr = s.Purge(op, jetstream.WithPurgeSubject(subjects.ObjectChunks(bucket, id)))
	}
	if serr != nil {
		b.log.Debug().Err(serr).Str("bucket", bucket).Msg("a part of an object was not removed")
	}
}

// writeChunk stores the next chunk of an object exactly once and tries again
// until the server confirms it. after is the sequence of the chunk before; 0: it
// is the first.
func (b *Broker) writeChunk(ctx context.Context, bucket string, m *nats.Msg, after uint64) (uint64, error) {
	m.Header[wire.HeaderExpect] = []string{strconv.FormatUint(after, 10)}
	return Insist(ctx, b, "write "+m.Subject, func(ctx context.Context) (uint64, error) {
		seq, err := b.PutMsg(ctx, m)
		if !errors.Is(err, ErrMoved) {
			return seq, b.asFull(ctx, bucket, err)
		}
		// Only this call writes to this subject. So an earlier try was stored and
		// its answer was lost, or it is still being stored, for example while a
		// quorum is missing.
		stored, err := b.Last(ctx, subjects.ObjectStream(bucket), m.Subject)
		switch {
		case err != nil:
			return 0, err
		case stored != nil && stored.Sequence > after:
			return stored.Sequence, nil
		case after > 0 && (stored == nil || stored.Sequence < after):
			return 0, fmt.Errorf("write %s: what was written of it before is gone: %w", m.Subject, ErrMoved)
		default:
			return 0, fmt.Errorf("write %s: an earlier try is not stored yet", m.Subject)
		}
	})
}

// Object reads an object of up to limit bytes, chunk by chunk, by sequence, and
// checks its sha256. It fails with the errors of Bundle. The reader of the client
// library creates a consumer, for which a trainer has no permission.
func (b *Broker) Object(ctx context.Context, bucket, sha string, limit int64) ([]byte, error) {
	if err := schema.CheckSHA256("sha256", sha); err != nil {
		return nil, err
	}
	info, _, err := b.objectInfo(ctx, bucket, sha)
	if err != nil {
		return nil, fmt.Errorf("read object %s in %s: %w", sha, bucket, err)
	}
	if info == nil {
		return nil, fmt.Errorf("object %s in %s: %w", sha, bucket, ErrNotFound)
	}
	if info.Size > uint64(limit) {
		return nil, &TooLargeError{What: "object " + sha, Size: info.Size, Limit: limit}
	}
	if err := schema.CheckToken("nuid", info.NUID); err != nil { // it becomes a part of a subject
		return nil, fmt.Errorf("object %s in %s: %w: %w", sha, bucket, ErrDigest, err)
	}
	data := make([]byte, 0, info.Size)
	for seq := uint64(1); uint64(len(data)) < info.Size; {
		m, err := b.readChunk(ctx, bucket, info.NUID, seq)
		if err != nil {
			return nil, fmt.Errorf("read object %s in %s at byte %d: %w", sha, bucket, len(data), err)
		}
		if m == nil {
			return nil, fmt.Errorf("object %s in %s ends at byte %d of %d: %w", sha, bucket, len(data), info.Size, ErrNotFound)
		}
		data = append(data, m.Data...)
		if n := uint64(len(data)); n > info.Size || n < info.Size && len(m.Data) < minChunk {
			return nil, fmt.Errorf("object %s in %s of %d bytes has a chunk of %d bytes before byte %d: %w", sha, bucket, info.Size, len(m.Data), n, ErrDigest)
		}
		seq = m.Sequence + 1
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != sha {
		return nil, fmt.Errorf("object %s in %s has sha256 %s: %w", sha, bucket, got, ErrDigest)
	}
	return data, nil
}

// readChunk reads the first chunk of an object at sequence from or later; nil if
// there is none.
func (b *Broker) readChunk(ctx context.Context, bucket, id string, from uint64) (*jetstream.RawStreamMsg, error) {
	subject := subjects.ObjectChunks(bucket, id)
	return Insist(ctx, b, "read "+subject, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.read(ctx, subjects.ObjectStream(bucket), subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
			return s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		})
	})
}

// ErrDigest is returned for an object with a name that is not the sha256 of its
// content, or with a description or chunks that are not those of an object.
var ErrDigest = errors.New("content does not match its sha256")
