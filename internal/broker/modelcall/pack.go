package modelcall

import (
	"context"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// packAbove is a size in bytes. Larger bodies are compressed; for smaller ones
// compression takes longer than it saves.
const packAbove = 128 << 10

// claimWithin bounds the time for reading a body from the object store. If it is
// not read by then, it is asked for again.
const claimWithin = time.Minute

// claimFor is the time that the object store keeps such a body. A call that is
// repeated after more than half of it stores its body again.
const claimFor = 6 * time.Hour

// Packed is the wire form of a body: plain, compressed, or the name of an object
// that has it.
type Packed struct {
	data   []byte
	header nats.Header
	until  time.Time // end of the object's life; zero: the body is in data
}

// packer compresses and decompresses bodies, and keeps its buffers for reuse.
type packer struct {
	store *broker.Broker
	zip   *zstd.Encoder
	unzip *zstd.Decoder
}

func newPacker(store *broker.Broker) (*packer, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, fmt.Errorf("set up compression: %w", err)
	}
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(schema.MaxBody))
	if err != nil {
		return nil, fmt.Errorf("set up compression: %w", err)
	}
	return &packer{store, zip, unzip}, nil
}

// pack compresses a large body. If it still does not fit into a message, it goes
// into a bucket and the message names the object.
func (p *packer) pack(ctx context.Context, what, bucket string, body []byte) (Packed, error) {
	out := Packed{data: body}
	if len(body) <= packAbove {
		return out, nil
	}
	if len(body) > schema.MaxBody {
		return out, &broker.TooLargeError{What: what, Size: uint64(len(body)), Limit: schema.MaxBody}
	}
	out.header = nats.Header{}
	if small := p.zip.EncodeAll(body, make([]byte, 0, len(body)/2)); len(small) < len(body) {
		out.data = small
		out.header[subjects.HeaderEncoding] = []string{subjects.EncodingZstd}
	}
	if p.store.CheckSize(what, len(out.data)) == nil {
		return out, nil
	}
	sha, err := p.store.Objects.PutBody(ctx, bucket, out.data, claimFor)
	if err != nil {
		return out, fmt.Errorf("put %s where it is found: %w", what, err)
	}
	out.data, out.until = nil, time.Now().Add(claimFor)
	out.header[subjects.HeaderClaim] = []string{sha}
	return out, nil
}

// stale reports whether the object of a body may expire before it is read.
func (p *Packed) stale() bool { return !p.until.IsZero() && time.Until(p.until) < claimFor/2 }

// unpack returns the body that pack was given. A body that its sender packed
// wrongly gives an *schema.InvalidError.
func (p *packer) unpack(ctx context.Context, bucket string, h nats.Header, data []byte) ([]byte, error) {
	if sha := h.Get(subjects.HeaderClaim); sha != "" {
		ctx, cancel := context.WithTimeout(ctx, claimWithin)
		defer cancel()
		var err error
		if data, err = p.store.Objects.Object(ctx, bucket, sha, schema.MaxBody); err != nil {
			return nil, err
		}
	}
	switch encoding := h.Get(subjects.HeaderEncoding); encoding {
	case "":
		return data, nil
	case subjects.EncodingZstd:
		body, err := p.unzip.DecodeAll(data, nil)
		if err != nil {
			return nil, &schema.InvalidError{Field: subjects.HeaderEncoding, Value: encoding, Want: fmt.Sprintf("want one zstd frame of at most %d bytes (%v)", schema.MaxBody, err)}
		}
		return body, nil
	default:
		return nil, &schema.InvalidError{Field: subjects.HeaderEncoding, Value: encoding, Want: "want " + subjects.EncodingZstd}
	}
}
