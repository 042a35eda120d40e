package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// packAbove is the size in bytes from which a body is compressed: below it the
// server is faster than the compression.
const packAbove = 128 << 10

// claimWithin bounds how long a body that travels through the object store may
// take to be read. What is not read by then is asked for again.
const claimWithin = time.Minute

// claimFor is how long such a body is kept. What is asked again later than half
// of it is put there again.
const claimFor = 6 * time.Hour

// Packed is a body as it travels: as it is, compressed, or as the name of an
// object that is it.
type Packed struct {
	data   []byte
	header nats.Header
	until  time.Time // of an object; zero: it is no object
}

// packer compresses bodies, and keeps the memory for that.
type packer struct {
	zip   *zstd.Encoder
	unzip *zstd.Decoder
}

func newPacker() (packer, error) {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return packer{}, fmt.Errorf("set up compression: %w", err)
	}
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(schema.MaxBody))
	if err != nil {
		return packer{}, fmt.Errorf("set up compression: %w", err)
	}
	return packer{zip, unzip}, nil
}

// pack compresses a large body; what still does not fit into a message goes
// into a bucket, and the message names it.
func (b *Broker) pack(ctx context.Context, what, bucket string, body []byte) (Packed, error) {
	p := Packed{data: body}
	if len(body) <= packAbove {
		return p, nil
	}
	if len(body) > schema.MaxBody {
		return p, &TooLargeError{What: what, Size: int64(len(body)), Limit: schema.MaxBody}
	}
	p.header = nats.Header{}
	if small := b.packer.zip.EncodeAll(body, make([]byte, 0, len(body)/2)); len(small) < len(body) {
		p.data = small
		p.header[subjects.HeaderEncoding] = []string{subjects.EncodingZstd}
	}
	if checkSize(b.bulk, what, len(p.data)) == nil {
		return p, nil
	}
	sha, err := b.putClaim(ctx, bucket, p.data)
	if err != nil {
		return p, fmt.Errorf("put %s where it is found: %w", what, err)
	}
	p.data, p.until = nil, time.Now().Add(claimFor)
	p.header[subjects.HeaderClaim] = []string{sha}
	return p, nil
}

// stale reports whether a body may be gone before it is read.
func (p *Packed) stale() bool { return !p.until.IsZero() && time.Until(p.until) < claimFor/2 }

// unpack undoes pack.
func (b *Broker) unpack(ctx context.Context, bucket string, h nats.Header, data []byte) ([]byte, error) {
	if sha := h.Get(subjects.HeaderClaim); sha != "" {
		ctx, cancel := context.WithTimeout(ctx, claimWithin)
		defer cancel()
		var err error
		if data, err = b.object(ctx, bucket, sha, schema.MaxBody); err != nil {
			return nil, err
		}
	}
	switch encoding := h.Get(subjects.HeaderEncoding); encoding {
	case "":
		return data, nil
	case subjects.EncodingZstd:
		return b.packer.unzip.DecodeAll(data, nil)
	default:
		return nil, fmt.Errorf("%s: %q is not known: want %s", subjects.HeaderEncoding, encoding, subjects.EncodingZstd)
	}
}
