package machines

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/turngate/turngate/schema"
)

// kind is the first byte of a message of a line.
type kind byte

const (
	kindOpen  kind = 'o' // the client wants the line; the payload is a schema.LineOpen
	kindData  kind = 'd' // bytes, or none: a sign of life
	kindAgain kind = 'a' // as kindData; bytes are missing from ack on
	kindEnd   kind = 'e' // no bytes follow; the payload is a schema.LineEnd
	kindReset kind = 'r' // the line is gone; the payload is a schema.LineEnd
)

// frame is a message of a line.
type frame struct {
	kind   kind
	seq    uint64 // offset of the first byte of data in the sender's stream
	ack    uint64 // bytes that the sender has got in order
	credit uint64 // offset up to which the receiver may send
	data   []byte
}

const frameHead = 1 + 3*8

// maxChunk bounds the bytes of a message.
const maxChunk = 64 << 10

func (f frame) encode() []byte {
	b := make([]byte, 0, frameHead+len(f.data))
	b = append(b, byte(f.kind))
	b = binary.BigEndian.AppendUint64(b, f.seq)
	b = binary.BigEndian.AppendUint64(b, f.ack)
	b = binary.BigEndian.AppendUint64(b, f.credit)
	return append(b, f.data...)
}

var errFrame = errors.New("not a message of a line")

// decode reads a message of the other side, which may be hostile.
func decode(b []byte) (f frame, err error) {
	if len(b) < frameHead || len(b) > frameHead+maxChunk {
		return f, errFrame
	}
	f = frame{kind(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), binary.BigEndian.Uint64(b[17:]), b[frameHead:]}
	switch f.kind {
	case kindOpen, kindData, kindAgain, kindEnd, kindReset:
		return f, nil
	}
	return f, fmt.Errorf("%w: kind %q", errFrame, byte(f.kind))
}

// endOf reads the payload of kindEnd and kindReset.
func endOf(data []byte) schema.LineEnd {
	var e schema.LineEnd
	if schema.Decode(data, &e) != nil {
		e = schema.LineEnd{Reason: schema.LineUnknown, Text: "the message cannot be read"}
	}
	e.Text = schema.Clip(e.Text, maxText)
	return e
}

// maxText bounds the text of a LineEnd.
const maxText = 2 << 10

func encodeEnd(e schema.LineEnd) []byte {
	e.V, e.Text = schema.Version, schema.Clip(e.Text, maxText)
	data, err := schema.Encode(&e)
	if err != nil { // cannot happen: any LineEnd is valid
		return nil
	}
	return data
}

// resetOf is the message that ends a line early.
func resetOf(reason, text string) []byte {
	return frame{kind: kindReset, data: encodeEnd(schema.LineEnd{Reason: reason, Text: text})}.encode()
}
