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

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// While the server cannot be reached, everything here tries again until its
// context ends.

// Bounds of what travels as a file, in bytes.
const (
	MaxBundle   = 256 << 20
	MaxArtifact = 256 << 20
)

// PutBundle keeps a task bundle under its sha256 and returns that. A bundle
// that is already there is not sent again.
func (b *Broker) PutBundle(ctx context.Context, data []byte) (string, error) {
	if len(data) > MaxBundle {
		return "", &TooLargeError{What: "task bundle", Size: int64(len(data)), Limit: MaxBundle}
	}
	return b.putObject(ctx, subjects.BucketTasks, data, 0)
}

// Bundle reads a task bundle and checks that it is the one named.
func (b *Broker) Bundle(ctx context.Context, sha string) ([]byte, error) {
	return b.object(ctx, subjects.BucketTasks, sha, MaxBundle)
}

// PutArtifact keeps a file of a rollout. keep is how long finished rollouts are
// kept: the server deletes the file after twice that and an hour, and it serves
// another rollout that has the same file while enough of this is left. 0: it is
// kept for ever.
func (b *Broker) PutArtifact(ctx context.Context, name string, data []byte, keep time.Duration) (schema.Artifact, error) {
	if len(data) > MaxArtifact {
		return schema.Artifact{}, &TooLargeError{What: "artifact " + name, Size: int64(len(data)), Limit: MaxArtifact}
	}
	sha, err := b.putObject(ctx, subjects.BucketArtifact, data, keep)
	return schema.Artifact{Name: name, Size: int64(len(data)), SHA256: sha}, err
}

// Artifact reads a file of a rollout.
func (b *Broker) Artifact(ctx context.Context, sha string) ([]byte, error) {
	return b.object(ctx, subjects.BucketArtifact, sha, MaxArtifact)
}

// commitWithin is how much longer a file is kept than the rollout, whose result
// is stored after it.
const commitWithin = 30 * time.Minute

func (b *Broker) putObject(ctx context.Context, bucket string, data []byte, keep time.Duration) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	there, err := b.objectStays(ctx, bucket, sha, keep)
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

// objectStays reports whether an object is there, and will be for so long; 0:
// for ever.
func (b *Broker) objectStays(ctx context.Context, bucket, name string, keep time.Duration) (bool, error) {
	info, m, err := b.objectInfo(ctx, bucket, name)
	if info == nil || err != nil {
		return false, err
	}
	text := m.Header.Get(jetstream.MsgTTLHeader)
	if text == "" {
		return true, nil
	}
	life, err := time.ParseDuration(text)
	if keep == 0 || err != nil {
		return false, nil //nolint:nilerr // then it is written again
	}
	now, err := b.serverTime(ctx, subjects.ObjectStream(bucket))
	return err == nil && life-now.Sub(m.Time) >= keep+commitWithin, err
}

// serverTime is the time by the clock that a stream's messages have theirs of.
func (b *Broker) serverTime(ctx context.Context, stream string) (time.Time, error) {
	return insist(ctx, b, "read the time of stream "+stream, func(ctx context.Context) (time.Time, error) {
		s, err := b.js.Stream(ctx, stream)
		if err != nil {
			return time.Time{}, err
		}
		return s.CachedInfo().TimeStamp, nil
	})
}

// putClaim keeps a body for claimFor.
func (b *Broker) putClaim(ctx context.Context, bucket string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	return sha, b.writeObject(ctx, bucket, sha, sum[:], data, claimFor)
}

// objectChunk is how many bytes of an object go into one message.
const objectChunk = 1 << 20

// objectInfo looks an object up, and the message that says it is there; nil when
// it is not.
func (b *Broker) objectInfo(ctx context.Context, bucket, name string) (*jetstream.ObjectInfo, *jetstream.RawStreamMsg, error) {
	m, err := insist(ctx, b, "look up object "+name, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.last(ctx, subjects.ObjectStream(bucket), subjects.ObjectMeta(bucket, name))
	})
	if m == nil || err != nil {
		return nil, nil, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, nil, fmt.Errorf("look up object %s: %w", name, err)
	}
	if info.Deleted {
		return nil, nil, nil
	}
	return &info, m, nil
}

// writeObject writes an object as NATS ADR-20 lays it out. The client's own
// writer publishes asynchronously, leaves a goroutine behind when a small
// object is written faster than that has begun, and gives up when the
// connection is lost. life is how long the server keeps the object; 0: until it
// is deleted.
func (b *Broker) writeObject(ctx context.Context, bucket, name string, sum, data []byte, life time.Duration) error {
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
			return err
		}
		info.Chunks++
	}
	meta, err := json.Marshal(&info)
	if err != nil {
		return err
	}
	header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err = insist(ctx, b, "name object "+name, func(ctx context.Context) (uint64, error) {
		return b.putMsg(ctx, &nats.Msg{Subject: subjects.ObjectMeta(bucket, name), Header: header, Data: meta})
	})
	return err
}

// writeChunk writes the next chunk of an object once, however often it takes
// to hear of it. after is the sequence of the one before; 0: it is the first.
func (b *Broker) writeChunk(ctx context.Context, bucket string, m *nats.Msg, after uint64) (uint64, error) {
	m.Header[headerExpect] = []string{strconv.FormatUint(after, 10)}
	return insist(ctx, b, "write "+m.Subject, func(ctx context.Context) (uint64, error) {
		seq, err := b.putMsg(ctx, m)
		if !errors.Is(err, errMoved) {
			return seq, err
		}
		// Nobody else writes this object: an earlier try was stored whose answer
		// was lost, or is on its way, as where a quorum is missing.
		stored, err := b.last(ctx, subjects.ObjectStream(bucket), m.Subject)
		switch {
		case err != nil:
			return 0, err
		case stored != nil && stored.Sequence > after:
			return stored.Sequence, nil
		case after > 0 && (stored == nil || stored.Sequence < after):
			return 0, fmt.Errorf("write %s: what was written of it before is gone: %w", m.Subject, errMoved)
		default:
			return 0, fmt.Errorf("write %s: an earlier try is not stored yet", m.Subject)
		}
	})
}

// object reads chunk by chunk with plain reads of the bucket's stream: the
// usual reader creates a consumer, which a trainer may not.
func (b *Broker) object(ctx context.Context, bucket, sha string, limit int64) ([]byte, error) {
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
		return nil, &TooLargeError{What: "object " + sha, Size: int64(info.Size), Limit: limit}
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
		seq = m.Sequence + 1
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != sha {
		return nil, fmt.Errorf("object %s in %s has sha256 %s: %w", sha, bucket, got, ErrDigest)
	}
	return data, nil
}

// readChunk reads an object's first chunk from a sequence on; nil when there is
// none.
func (b *Broker) readChunk(ctx context.Context, bucket, id string, from uint64) (*jetstream.RawStreamMsg, error) {
	subject := subjects.ObjectChunks(bucket, id)
	return insist(ctx, b, "read "+subject, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.read(ctx, subjects.ObjectStream(bucket), subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
			return s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		})
	})
}

// ErrDigest is returned for an object whose bytes are not those of its name.
var ErrDigest = errors.New("content does not match its sha256")
