package schema

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Message is anything that travels as one msgpack map and can check itself.
type Message interface {
	// Validate reports the first field that is wrong as an *InvalidError.
	Validate() error
}

// sizer is a message that knows about how large it will be, so that encoding
// it grows no buffer.
type sizer interface{ sizeHint() int }

// Encode writes m as msgpack, after checking it, so that nothing invalid
// leaves the process.
func Encode(m Message) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	hint := 512
	if s, ok := m.(sizer); ok {
		hint += s.sizeHint()
	}
	switch m := m.(type) {
	case *Call:
		return appendCall(make([]byte, 0, hint), m), nil
	case *Reply:
		return appendReply(make([]byte, 0, hint), m), nil
	}
	buf := bytes.NewBuffer(make([]byte, 0, hint))
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
	enc.SetCustomStructTag("json")
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(m); err != nil {
		return nil, fmt.Errorf("encode %T: %w", m, err)
	}
	return buf.Bytes(), nil
}

// Decode reads one msgpack map into m and checks it. Input of any form is
// safe: nesting, counts and lengths are checked before a byte is copied. The
// raw parts of a Call and a Reply alias data.
// Errors are a *ShapeError for what is not msgpack as we bound it, and an
// *InvalidError for a field with a wrong value.
func Decode(data []byte, m Message) error {
	if err := checkShape(data); err != nil {
		return err
	}
	if direct, err := decodeDirect(data, m); direct {
		if err != nil {
			return &ShapeError{Reason: err.Error()}
		}
		return m.Validate()
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	dec.DisableAllocLimit(true) // checkShape has bounded every length by len(data)
	if err := dec.Decode(m); err != nil {
		return &ShapeError{Reason: err.Error()}
	}
	return m.Validate()
}

// AppendCall appends what Encode gives for a call to b, for callers that reuse
// their memory.
func AppendCall(b []byte, c *Call) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return appendCall(slices.Grow(b, 512+c.sizeHint()), c), nil
}

// decodeDirect reads the messages that have a codec of their own.
func decodeDirect(data []byte, m Message) (bool, error) {
	switch m := m.(type) {
	case *Call:
		return true, readCall(data, m)
	case *Reply:
		return true, readReply(data, m)
	default:
		return false, nil
	}
}
