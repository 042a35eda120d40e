package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// Readable writes the fields of any message as indented JSON, for people: it needs no
// type and checks no value. Bytes that are text, such as raw JSON, become a string,
// others base64. Errors are a *ShapeError, as of Decode.
func Readable(data []byte) ([]byte, error) {
	if err := checkShape(data); err != nil {
		return nil, err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	dec.DisableAllocLimit(true) // checkShape has bounded every length by len(data)
	dec.SetMapDecoder(readableMap)
	value, err := dec.DecodeInterface()
	if err != nil {
		return nil, &ShapeError{Reason: err.Error()}
	}
	out, err := json.MarshalIndent(plainValue(value), "", "  ")
	if err != nil {
		return nil, &ShapeError{Reason: err.Error()}
	}
	return out, nil
}

// readableMap reads a map with keys of any type.
func readableMap(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for range n {
		key, err := d.DecodeInterface()
		if err != nil {
			return nil, err
		}
		if out[fmt.Sprint(plainValue(key))], err = d.DecodeInterface(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// plainValue replaces the values that JSON does not have.
func plainValue(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = plainValue(x)
		}
		return v
	case []any:
		for i := range v {
			v[i] = plainValue(v[i])
		}
		return v
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return base64.StdEncoding.EncodeToString(v)
	case float32:
		return plainValue(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
		return v
	default:
		return v
	}
}
