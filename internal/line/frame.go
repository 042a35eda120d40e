package line

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/turngate/turngate/schema"
)

// Kind is the first byte of a message of a line.
type Kind byte

// The kinds of messages.
const (
	KindOpen  Kind = 'o' // the client wants the line; the payload is a schema.LineOpen
	KindData  Kind = 'd' // bytes, or none: a sign of life
	KindAgain Kind = 'a' // as KindData; bytes are missing from Ack on
	KindEnd   Kind = 'e' // no bytes follow; the payload is a schema.LineEnd
	KindReset Kind = 'r' // the line is gone; the payload is a schema.LineEnd
)

// Frame is a message of a line.
type Frame struct {
	Kind   Kind
	Seq    uint64 // offset of the first byte of Data in the sender's stream
	Ack    uint64 // bytes that the sender has got in order
	Credit uint64 // offset up to which the receiver may send
	Data   []byte
}

const frameHead = 1 + 3*8

// maxChunk bounds the data of a message.
const maxChunk = 64 << 10

// MaxMessage bounds the bytes of a message.
const MaxMessage = frameHead + maxChunk

// Encode writes a message.
func (f Frame) Encode() []byte {
	b := make([]byte, 0, frameHead+len(f.Data))
	b = append(b, byte(f.Kind))
	b = binary.BigEndian.AppendUint64(b, f.Seq)
	b = binary.BigEndian.AppendUint64(b, f.Ack)
	b = binary.BigEndian.AppendUint64(b, f.Credit)
	return append(b, f.Data...)
}

var errFrame = errors.New("not a message of a line")

// Decode reads a message of the other side, which may be hostile.
func Decode(b []byte) (f Frame, err error) {
	if len(b) < frameHead || len(b) > MaxMessage {
		return f, errFrame
	}
	f = Frame{Kind(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), binary.BigEndian.Uint64(b[17:]), b[frameHead:]}
	switch f.Kind {
	case KindOpen, KindData, KindAgain, KindEnd, KindReset:
		return f, nil
	}
	return f, fmt.Errorf("%w: kind %q", errFrame, byte(f.Kind))
}

// endOf reads the payload of KindEnd and KindReset.
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

// ResetOf is the message that ends a line early.
func ResetOf(reason, text string) []byte {
	return Frame{Kind: KindReset, Data: encodeEnd(schema.LineEnd{Reason: reason, Text: text})}.Encode()
}
