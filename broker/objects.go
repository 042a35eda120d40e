package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

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
	return b.putObject(ctx, subjects.BucketTasks, data)
}

// Bundle reads a task bundle and checks that it is the one named.
func (b *Broker) Bundle(ctx context.Context, sha string) ([]byte, error) {
	return b.object(ctx, subjects.BucketTasks, sha, MaxBundle)
}

// PutArtifact keeps a file of a rollout.
func (b *Broker) PutArtifact(ctx context.Context, name string, data []byte) (schema.Artifact, error) {
	if len(data) > MaxArtifact {
		return schema.Artifact{}, &TooLargeError{What: "artifact " + name, Size: int64(len(data)), Limit: MaxArtifact}
	}
	sha, err := b.putObject(ctx, subjects.BucketArtifact, data)
	return schema.Artifact{Name: name, Size: int64(len(data)), SHA256: sha}, err
}

// Artifact reads a file of a rollout.
func (b *Broker) Artifact(ctx context.Context, sha string) ([]byte, error) {
	return b.object(ctx, subjects.BucketArtifact, sha, MaxArtifact)
}

func (b *Broker) putObject(ctx context.Context, bucket string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	store, err := b.js.ObjectStore(ctx, bucket)
	if err != nil {
		return "", fmt.Errorf("open object store %s: %w", bucket, err)
	}
	if _, err := store.GetInfo(ctx, sha); err == nil {
		return sha, nil
	}
	if err := b.writeObject(ctx, bucket, sha, sum[:], data, 0); err != nil {
		return "", fmt.Errorf("put %d bytes into object store %s: %w", len(data), bucket, err)
	}
	return sha, nil
}

// putClaim keeps a body for claimFor.
func (b *Broker) putClaim(ctx context.Context, bucket string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	sha := hex.EncodeToString(sum[:])
	return sha, b.writeObject(ctx, bucket, sha, sum[:], data, claimFor)
}

// objectChunk is how many bytes of an object go into one message.
const objectChunk = 1 << 20

// writeObject writes an object as NATS ADR-20 lays it out. The client's own
// writer publishes asynchronously, and leaves a goroutine behind when a small
// object is written faster than that has begun. keep is how long the server
// keeps it; 0: until it is deleted.
func (b *Broker) writeObject(ctx context.Context, bucket, name string, sum, data []byte, keep time.Duration) error {
	header := nats.Header{}
	if keep > 0 {
		header[jetstream.MsgTTLHeader] = []string{keep.String()}
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}},
		Bucket:     bucket, NUID: nuid.Next(), Size: uint64(len(data)), ModTime: time.Now().UTC(), Digest: "SHA-256=" + base64.URLEncoding.EncodeToString(sum),
	}
	room := int(min(objectChunk, max(b.bulk.MaxPayload()-headerRoom, headerRoom)))
	for chunk := range slices.Chunk(data, room) {
		if _, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: "$O." + bucket + ".C." + info.NUID, Header: header, Data: chunk}); err != nil {
			return err
		}
		info.Chunks++
	}
	meta, err := json.Marshal(&info)
	if err != nil {
		return err
	}
	header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err = b.js.PublishMsg(ctx, &nats.Msg{Subject: "$O." + bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name)), Header: header, Data: meta})
	return err
}

// object reads chunk by chunk with plain reads of the bucket's stream: the
// usual reader creates a consumer, which a trainer may not.
func (b *Broker) object(ctx context.Context, bucket, sha string, limit int64) ([]byte, error) {
	if err := schema.CheckSHA256("sha256", sha); err != nil {
		return nil, err
	}
	store, err := b.js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", bucket, err)
	}
	info, err := store.GetInfo(ctx, sha)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, fmt.Errorf("object %s in %s: %w", sha, bucket, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("look up object %s in %s: %w", sha, bucket, err)
	}
	if info.Size > uint64(limit) {
		return nil, &TooLargeError{What: "object " + sha, Size: int64(info.Size), Limit: limit}
	}
	stream, err := b.js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, fmt.Errorf("open the stream of object store %s: %w", bucket, err)
	}
	data := make([]byte, 0, info.Size)
	subject := "$O." + bucket + ".C." + info.NUID
	for seq := uint64(1); uint64(len(data)) < info.Size; {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			return nil, fmt.Errorf("read object %s in %s at byte %d: %w", sha, bucket, len(data), err)
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

// ErrDigest is returned for an object whose bytes are not those of its name.
var ErrDigest = errors.New("content does not match its sha256")
