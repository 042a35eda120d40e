package schema

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Message is a value that is sent as one msgpack map and can check itself.
type Message interface {
	// check reports the first field that is wrong as an *InvalidError.
	check() error
}

// Validate reports the first field of a message that is wrong as an *InvalidError. Encode
// and Decode do so by themselves.
func Validate(m Message) error { return m.check() }

// sizer is a message that estimates its encoded size, so that the encoder
// allocates its buffer once.
type sizer interface{ sizeHint() int }

// Encode checks m and writes it as msgpack. An invalid message gives an
// *InvalidError and is never sent.
func Encode(m Message) ([]byte, error) { return Append(nil, m) }

// Append encodes m as Encode does and appends it to b, for callers that reuse
// their buffers.
func Append(b []byte, m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	hint := 512
	if s, ok := m.(sizer); ok {
		hint += s.sizeHint()
	}
	buf := bytes.NewBuffer(slices.Grow(b, hint))
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
// safe: nesting, counts and lengths are checked before a byte is copied.
// Errors are a *ShapeError for bytes that are not msgpack within the bounds of
// this package, and an *InvalidError for a field with a wrong value.
func Decode(data []byte, m Message) error {
	if err := checkShape(data); err != nil {
		return err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.SetCustomStructTag("json")
	dec.DisableAllocLimit(true) // checkShape has bounded every length by len(data)
	if err := dec.Decode(m); err != nil {
		return &ShapeError{Reason: err.Error()}
	}
	return m.check()
}
