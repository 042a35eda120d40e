package schema

import "github.com/tinylib/msgp/msgp"

// PeekID reads the rollout's id from the beginning of a message that Decode
// refused. ok is false if there is no readable id.
func PeekID(data []byte) (ID, bool) {
	n, rest, err := msgp.ReadMapHeaderBytes(data)
	for ; err == nil && n > 0; n-- {
		var key, text string
		if key, rest, err = msgp.ReadStringBytes(rest); err != nil {
			break
		}
		switch msgp.NextType(rest) {
		case msgp.StrType:
			text, rest, err = msgp.ReadStringBytes(rest)
		case msgp.IntType, msgp.UintType:
			rest, err = msgp.Skip(rest)
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
