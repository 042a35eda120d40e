package schema

import (
	"bytes"
	"fmt"

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
// safe: nesting, counts and lengths are checked before a byte is copied.
// Errors are a *ShapeError for what is not msgpack as we bound it, and an
// *InvalidError for a field with a wrong value.
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
	return m.Validate()
}
