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

// packAbove is the size in bytes from which a call is compressed: below it the
// server is faster than the compression.
const packAbove = 128 << 10

// claimWithin bounds how long a body that travels through the object store may
// take to be read.
const claimWithin = time.Minute

// packed is a call's body as it travels.
type packed struct {
	data   []byte
	header nats.Header
}

// pack compresses a large body; what still does not fit into a message goes
// through the object store, and the message names it.
func (b *Broker) pack(ctx context.Context, what string, body []byte) (packed, error) {
	p := packed{data: body}
	if len(body) <= packAbove {
		return p, nil
	}
	if len(body) > schema.MaxBody {
		return p, &TooLargeError{What: what, Size: int64(len(body)), Limit: schema.MaxBody}
	}
	p.header = nats.Header{}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return p, fmt.Errorf("compress %s: %w", what, err)
	}
	defer func() { _ = z.Close() }() // it writes to nothing
	if small := z.EncodeAll(body, make([]byte, 0, len(body)/2)); len(small) < len(body) {
		p.data = small
		p.header[subjects.HeaderEncoding] = []string{subjects.EncodingZstd}
	}
	if checkSize(b.bulk, what, len(p.data)) == nil {
		return p, nil
	}
	sha, err := b.putObject(ctx, subjects.BucketArtifact, p.data)
	if err != nil {
		return p, fmt.Errorf("put %s where its trainer finds it: %w", what, err)
	}
	p.data = nil
	p.header[subjects.HeaderClaim] = []string{sha}
	return p, nil
}

// unpack undoes pack.
func (b *Broker) unpack(ctx context.Context, h nats.Header, data []byte) ([]byte, error) {
	if sha := h.Get(subjects.HeaderClaim); sha != "" {
		var err error
		if data, err = b.object(ctx, subjects.BucketArtifact, sha, schema.MaxBody); err != nil {
			return nil, err
		}
	}
	switch encoding := h.Get(subjects.HeaderEncoding); encoding {
	case "":
		return data, nil
	case subjects.EncodingZstd:
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(schema.MaxBody))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return z.DecodeAll(data, nil)
	default:
		return nil, fmt.Errorf("%s: %q is not known: want %s", subjects.HeaderEncoding, encoding, subjects.EncodingZstd)
	}
}
