package trajectory

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/turngate/turngate/schema"
)

// readOptions reads lines of a transcript as encoding/json does. Token ids and
// log-probs are most of a transcript, so they are packed without a list in between.
func readOptions() json.Options {
	return json.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false), json.WithUnmarshalers(json.JoinUnmarshalers(
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, ids *schema.TokenIDs) error {
			v, err := d.ReadValue()
			if err != nil {
				return err
			}
			out, ok := packIDs(v)
			if !ok {
				return ids.UnmarshalJSON(v)
			}
			*ids = out
			return nil
		}),
		json.UnmarshalFromFunc(func(d *jsontext.Decoder, probs *schema.Logprobs) error {
			v, err := d.ReadValue()
			if err != nil {
				return err
			}
			out, ok := packLogprobs(v)
			if !ok {
				return probs.UnmarshalJSON(v)
			}
			*probs = out
			return nil
		}),
	)))
}

// packIDs packs a list of integers without white space.
func packIDs(list jsontext.Value) (out schema.TokenIDs, ok bool) {
	if list.Kind() != '[' || len(list) == len(`[]`) {
		return nil, false
	}
	out = make([]byte, 0, 4*(1+bytes.Count(list, []byte{','})))
	n, negative := int64(0), false
	for _, c := range list[1:] {
		switch {
		case '0' <= c && c <= '9':
			if n = n*10 + int64(c-'0'); n > -math.MinInt32 {
				return nil, false
			}
		case c == '-':
			negative = true
		case c == ',', c == ']':
			if negative {
				n = -n
			}
			if n > math.MaxInt32 {
				return nil, false
			}
			out = binary.LittleEndian.AppendUint32(out, uint32(n))
			n, negative = 0, false
		default:
			return nil, false
		}
	}
	return out, true
}

// packLogprobs packs a list of numbers and nulls without white space. Null is
// negative infinity.
func packLogprobs(list jsontext.Value) (out schema.Logprobs, ok bool) {
	if list.Kind() != '[' || len(list) == len(`[]`) {
		return nil, false
	}
	rest := list[1 : len(list)-1]
	for more := true; more; {
		var number []byte
		number, rest, more = bytes.Cut(rest, []byte{','})
		f := math.Inf(-1)
		if string(number) != "null" {
			var err error
			if f, err = strconv.ParseFloat(string(number), 32); err != nil {
				return nil, false
			}
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(f)))
	}
	return out, true
}
