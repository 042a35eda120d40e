package schema

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// PeekID reads the rollout's id from the beginning of a message that Decode
// refused. ok is false if there is no readable id.
func PeekID(data []byte) (ID, bool) {
	dec := msgpack.NewDecoder(bytes.NewReader(data))
	n, err := dec.DecodeMapLen()
	for ; err == nil && n > 0; n-- {
		var key, text string
		if key, err = dec.DecodeString(); err != nil {
			break
		}
		code, _ := dec.PeekCode() // 0 at the end of the data, where reading fails
		switch {
		case msgpcode.IsString(code):
			text, err = dec.DecodeString()
		case msgpcode.IsFixedNum(code), code >= msgpcode.Uint8 && code <= msgpcode.Int64:
			_, err = dec.DecodeInt64()
		default: // only strings and integers come before the id
			return "", false
		}
		if err == nil && key == "id" {
			id, err := ParseID(text)
			return id, err == nil
		}
	}
	return "", false
}
