package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// bucket is an object store, in the layout of NATS ADR-20.
type bucket struct {
	*Objects
	name   string
	stream string // that has the objects
}

// objectChunk is the largest part of an object in one message, in bytes.
const objectChunk = 1 << 20

// minChunk is the smallest part of an object but the last, in bytes. Without it an
// object of tiny parts would cost its reader millions of requests.
const minChunk = 1 << 10

// messageRoom is about the number of bytes that a stream stores for each message
// besides its body.
const messageRoom = 256

// stays reports whether an object has a description with this size and stays
// for the duration keep; 0: for ever. It does not look at the chunks.
func (b *bucket) stays(ctx context.Context, name string, size int64, keep time.Duration) (bool, error) {
	info, m, err := b.info(ctx, name)
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
	now, err := b.now(ctx)
	return err == nil && life-now.Sub(m.Time) >= keep+commitWithin, err
}

// now returns the current time by the clock that gives the messages of the bucket
// their timestamps.
func (b *bucket) now(ctx context.Context) (time.Time, error) {
	return Insist(ctx, &b.log, "read the time of stream "+b.stream, func(ctx context.Context) (time.Time, error) {
		info, err := b.streamInfo(ctx)
		if err != nil {
			return time.Time{}, err
		}
		return info.TimeStamp, nil
	})
}

// info returns the metadata of an object and the message that has it; nil
// if there is no such object.
func (b *bucket) info(ctx context.Context, name string) (*jetstream.ObjectInfo, *jetstream.RawStreamMsg, error) {
	m, err := Insist(ctx, &b.log, "look up object "+name, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.messages.Last(ctx, b.stream, subjects.ObjectMeta(b.name, name))
	})
	if m == nil || err != nil {
		return nil, nil, err
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, nil, fmt.Errorf("look up object %s: %w: %w", name, ErrDigest, rawjson.Plain(err))
	}
	if info.Deleted {
		return nil, nil, nil
	}
	return &info, m, nil
}

// find returns the description of an object of up to limit bytes. Its errors are those
// of Bundle.
func (b *bucket) find(ctx context.Context, sha string, limit int64) (*jetstream.ObjectInfo, error) {
	if err := schema.CheckSHA256("sha256", sha); err != nil {
		return nil, err
	}
	info, _, err := b.info(ctx, sha)
	if err != nil {
		return nil, fmt.Errorf("read object %s in %s: %w", sha, b.name, err)
	}
	if info == nil {
		return nil, fmt.Errorf("object %s in %s: %w", sha, b.name, ErrNotFound)
	}
	if info.Size > uint64(limit) {
		return nil, &TooLargeError{What: "object " + sha, Size: info.Size, Limit: limit}
	}
	if err := schema.CheckToken("nuid", info.NUID); err != nil { // it becomes a part of a subject
		return nil, fmt.Errorf("object %s in %s: %w: %w", sha, b.name, ErrDigest, err)
	}
	return info, nil
}

// copy writes the content of an object, of which find returned the description.
func (b *bucket) copy(ctx context.Context, sha string, info *jetstream.ObjectInfo, to io.Writer) error {
	sum := sha256.New()
	both := io.MultiWriter(to, sum)
	n := uint64(0)
	for seq := uint64(1); n < info.Size; {
		m, err := b.readChunk(ctx, info.NUID, seq)
		if err != nil {
			return fmt.Errorf("read object %s in %s at byte %d: %w", sha, b.name, n, err)
		}
		if m == nil {
			return fmt.Errorf("object %s in %s ends at byte %d of %d: %w", sha, b.name, n, info.Size, ErrNotFound)
		}
		if n += uint64(len(m.Data)); n > info.Size || n < info.Size && len(m.Data) < minChunk {
			return fmt.Errorf("object %s in %s of %d bytes has a chunk of %d bytes before byte %d: %w", sha, b.name, info.Size, len(m.Data), n, ErrDigest)
		}
		if _, err := both.Write(m.Data); err != nil {
			return fmt.Errorf("copy object %s: %w", sha, err)
		}
		seq = m.Sequence + 1
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != sha {
		return fmt.Errorf("object %s in %s has sha256 %s: %w", sha, b.name, got, ErrDigest)
	}
	return nil
}

// write writes an object in the layout of NATS ADR-20. It replaces the
// writer of the client library, which publishes asynchronously, may leak a
// goroutine after a small object, and gives up when the connection is lost. The
// server deletes the object after life; 0: never. A *FullError means that there is
// no room for it. Readers see the object when write has returned without an error.
func (b *bucket) write(ctx context.Context, name string, sum []byte, file File, life time.Duration) (err error) {
	if err := b.hasRoom(ctx, file.Size); err != nil {
		return err
	}
	header := nats.Header{}
	if life > 0 {
		header[jetstream.MsgTTLHeader] = []string{life.String()}
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}},
		Bucket:     b.name, NUID: nuid.Next(), Size: uint64(file.Size), ModTime: time.Now().UTC(), Digest: "SHA-256=" + base64.URLEncoding.EncodeToString(sum),
	}
	defer func() { b.removeChunks(ctx, info.NUID, err) }()
	if info.Chunks, err = b.writeChunks(ctx, info.NUID, header, file); err != nil {
		return err
	}
	meta, err := json.Marshal(&info)
	if err != nil {
		return err
	}
	header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err = Insist(ctx, &b.log, "name object "+name, func(ctx context.Context) (uint64, error) {
		seq, err := b.messages.PutMsg(ctx, &nats.Msg{Subject: subjects.ObjectMeta(b.name, name), Header: header, Data: meta})
		return seq, b.asFull(ctx, err)
	})
	return err
}

// writeChunks stores the chunks of an object and returns their number. An error of the file
// is an *unreadError.
func (b *bucket) writeChunks(ctx context.Context, id string, header nats.Header, file File) (n uint32, err error) {
	content := file.Open()
	chunk := make([]byte, min(file.Size, objectChunk, max(b.bulk.MaxPayload()-headerRoom, headerRoom)))
	var last uint64
	for left := file.Size; left > 0; left -= int64(len(chunk)) {
		chunk = chunk[:min(left, int64(len(chunk)))]
		if _, err := io.ReadFull(content, chunk); err != nil {
			return n, &unreadError{err}
		}
		if last, err = b.writeChunk(ctx, &nats.Msg{Subject: subjects.ObjectChunks(b.name, id), Header: maps.Clone(header), Data: chunk}, last); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// unreadError means that the file to store could not be read.
type unreadError struct{ err error }

func (e *unreadError) Error() string { return "read the file to store: " + e.err.Error() }
func (e *unreadError) Unwrap() error { return e.err }

// hasRoom returns a *FullError if the bucket has no room for n bytes.
func (b *bucket) hasRoom(ctx context.Context, n int64) error {
	_, err := Insist(ctx, &b.log, "read the size of stream "+b.stream, func(ctx context.Context) (struct{}, error) {
		info, err := b.streamInfo(ctx)
		if err != nil {
			return struct{}{}, err
		}
		need := n + (n/objectChunk+2)*messageRoom
		if limit := info.Config.MaxBytes; limit > 0 && int64(info.State.Bytes)+need > limit {
			return struct{}{}, b.fullError(limit)
		}
		return struct{}{}, nil
	})
	return err
}

// streamInfo reads the state of the bucket's stream, which is made again if it is
// missing.
func (b *bucket) streamInfo(ctx context.Context) (*jetstream.StreamInfo, error) {
	s, err := b.streams.Fresh(ctx, b.stream)
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// asFull returns a *FullError if err says that the bucket has reached its bound, and
// err otherwise.
func (b *bucket) asFull(ctx context.Context, err error) error {
	if !IsFull(err) {
		return err
	}
	info, ierr := b.streamInfo(ctx)
	if ierr != nil {
		return errors.Join(err, ierr)
	}
	return b.fullError(info.Config.MaxBytes)
}

func (b *bucket) fullError(limit int64) *FullError {
	tid, _ := subjects.TrainerOfStream(b.stream)
	what := "artifacts"
	if b.name == subjects.TasksBucket(tid) {
		what = "bundles"
	}
	return &FullError{Trainer: tid, What: what, Limit: limit}
}

// removeChunks removes the stored chunks of an object that did not fit into its
// bucket, or that could not be read to its end. Only workers may delete chunks, so a
// trainer's chunks stay; hasRoom makes them rare.
func (b *bucket) removeChunks(ctx context.Context, id string, err error) {
	var full *FullError
	var unread *unreadError
	tid, _ := subjects.TrainerOfStream(b.stream)
	if !errors.As(err, &full) && !errors.As(err, &unread) || b.name != subjects.ArtifactsBucket(tid) {
		return
	}
	s, err := b.streams.Open(ctx, b.stream)
	if err == nil {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		err = s.Purge(op, jetstream.WithPurgeSubject(subjects.ObjectChunks(b.name, id)))
	}
	if err != nil {
		b.log.Debug().Err(err).Str("bucket", b.name).Msg("a part of an object was not removed")
	}
}

// writeChunk stores the next chunk of an object exactly once and tries again
// until the server confirms it. after is the sequence of the chunk before; 0: it
// is the first.
func (b *bucket) writeChunk(ctx context.Context, m *nats.Msg, after uint64) (uint64, error) {
	m.Header[wire.HeaderExpect] = []string{strconv.FormatUint(after, 10)}
	return Insist(ctx, &b.log, "write "+m.Subject, func(ctx context.Context) (uint64, error) {
		seq, err := b.messages.PutMsg(ctx, m)
		if !errors.Is(err, ErrMoved) {
			return seq, b.asFull(ctx, err)
		}
		// Only this call writes to this subject. So an earlier try was stored and
		// its answer was lost, or it is still being stored, for example while a
		// quorum is missing.
		stored, err := b.messages.Last(ctx, b.stream, m.Subject)
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

// readChunk reads the first chunk of an object at sequence from or later; nil if
// there is none.
func (b *bucket) readChunk(ctx context.Context, id string, from uint64) (*jetstream.RawStreamMsg, error) {
	subject := subjects.ObjectChunks(b.name, id)
	return Insist(ctx, &b.log, "read "+subject, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return b.messages.read(ctx, b.stream, subject, func(ctx context.Context, s jetstream.Stream) (*jetstream.RawStreamMsg, error) {
			return s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
		})
	})
}
