package schema

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/turngate/turngate/internal/rawjson"
)

// TokenIDs are a model's token ids, packed as little-endian int32, four bytes
// each. Packed arrays take a tenth of the time of msgpack lists.
type TokenIDs []byte

// PackTokenIDs packs ids.
func PackTokenIDs(ids []int32) TokenIDs {
	out := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	return out
}

// Len returns the number of tokens.
func (t TokenIDs) Len() int { return len(t) / 4 }

// Unpack returns the ids as a list.
func (t TokenIDs) Unpack() []int32 { return t.AppendTo(make([]int32, 0, t.Len())) }

// AppendTo appends the ids to a list.
func (t TokenIDs) AppendTo(list []int32) []int32 {
	for ; len(t) >= 4; t = t[4:] {
		list = append(list, int32(binary.LittleEndian.Uint32(t)))
	}
	return list
}

// MarshalJSON writes a plain list, for people and for -o json.
func (t TokenIDs) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 2*len(t)+2), '[')
	for i := 0; i+4 <= len(t); i += 4 {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(int32(binary.LittleEndian.Uint32(t[i:]))), 10)
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads a plain list.
func (t *TokenIDs) UnmarshalJSON(b []byte) error {
	var ids []int32
	if err := json.Unmarshal(b, &ids); err != nil {
		return fmt.Errorf("token ids: %w", rawjson.Plain(err))
	}
	*t = PackTokenIDs(ids)
	return nil
}

// Logprobs are natural-log probabilities, packed as little-endian float32.
type Logprobs []byte

// PackLogprobs packs values.
func PackLogprobs(values []float32) Logprobs {
	out := make([]byte, 0, 4*len(values))
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// Len returns the number of values.
func (l Logprobs) Len() int { return len(l) / 4 }

// Unpack returns the values as a list.
func (l Logprobs) Unpack() []float32 { return l.AppendTo(make([]float32, 0, l.Len())) }

// AppendTo appends the values to a list.
func (l Logprobs) AppendTo(list []float32) []float32 {
	for ; len(l) >= 4; l = l[4:] {
		list = append(list, math.Float32frombits(binary.LittleEndian.Uint32(l)))
	}
	return list
}

// MarshalJSON writes a plain list; a value that JSON has no form for (an
// infinity) becomes null.
func (l Logprobs) MarshalJSON() ([]byte, error) {
	values := l.Unpack()
	out := make([]*float32, len(values))
	for i, v := range values {
		if !math.IsInf(float64(v), 0) && !math.IsNaN(float64(v)) {
			out[i] = &values[i]
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads a plain list; null reads as negative infinity.
func (l *Logprobs) UnmarshalJSON(b []byte) error {
	var list []*float32
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("logprobs: %w", rawjson.Plain(err))
	}
	values := make([]float32, len(list))
	for i, v := range list {
		values[i] = float32(math.Inf(-1))
		if v != nil {
			values[i] = *v
		}
	}
	*l = PackLogprobs(values)
	return nil
}

func checkPacked(field string, n int) error {
	if n%4 != 0 {
		return invalid(field, fmt.Sprintf("%d bytes", n), "a packed array has 4 bytes a value")
	}
	return nil
}
