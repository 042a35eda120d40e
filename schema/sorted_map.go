package schema

import (
	"maps"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// SortedMap is a map that is encoded in the order of its keys, so that equal
// messages are equal bytes.
type SortedMap[V any] map[string]V

// IsZero reports whether the map is absent. The encoder omits an absent map
// only: a call of an empty one has no parameters, and a call without one has its base's.
func (m SortedMap[V]) IsZero() bool { return m == nil }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (m SortedMap[V]) EncodeMsgpack(enc *msgpack.Encoder) error {
	if m == nil {
		return enc.EncodeNil()
	}
	if err := enc.EncodeMapLen(len(m)); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := enc.EncodeString(k); err != nil {
			return err
		}
		if err := enc.Encode(m[k]); err != nil {
			return err
		}
	}
	return nil
}
