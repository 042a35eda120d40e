package schema

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// Every model call sends one Call, which may be large. Calls are therefore
// written to and read from byte slices directly: the decoded raw parts are
// slices of the message, without a copy.

// appendCall appends the call as one msgpack map, in the form that the msgpack
// library would give it.
func appendCall(b []byte, c *Call) []byte {
	n := uint32(5)
	params := len(c.Params) > 0 || c.Params != nil && c.Base != 0 // an absent map means the base's parameters
	for _, present := range [...]bool{
		c.Model != "", len(c.Tools) > 0, params, c.Base != 0, c.Keep != 0, len(c.Digest) > 0, c.Stream, c.RemainingMS != 0,
	} {
		if present {
			n++
		}
	}
	b = msgp.AppendMapHeader(b, n)
	b = msgp.AppendInt(msgp.AppendString(b, "v"), c.V)
	b = msgp.AppendString(msgp.AppendString(b, "key"), c.Key)
	b = msgp.AppendString(msgp.AppendString(b, "tag"), c.Tag)
	b = msgp.AppendString(msgp.AppendString(b, "dialect"), c.Dialect)
	if c.Model != "" {
		b = msgp.AppendString(msgp.AppendString(b, "model"), c.Model)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "messages"), uint32(len(c.Messages)))
	for _, m := range c.Messages {
		b = msgp.AppendBytes(b, m)
	}
	if len(c.Tools) > 0 {
		b = msgp.AppendBytes(msgp.AppendString(b, "tools"), c.Tools)
	}
	if params {
		b = msgp.AppendMapHeader(msgp.AppendString(b, "params"), uint32(len(c.Params)))
		for _, name := range slices.Sorted(maps.Keys(c.Params)) {
			b = msgp.AppendBytes(msgp.AppendString(b, name), c.Params[name])
		}
	}
	if c.Base != 0 {
		b = msgp.AppendInt(msgp.AppendString(b, "base"), c.Base)
	}
	if c.Keep != 0 {
		b = msgp.AppendInt(msgp.AppendString(b, "keep"), c.Keep)
	}
	if len(c.Digest) > 0 {
		b = msgp.AppendBytes(msgp.AppendString(b, "digest"), c.Digest)
	}
	if c.Stream {
		b = msgp.AppendBool(msgp.AppendString(b, "stream"), true)
	}
	if c.RemainingMS != 0 {
		b = msgp.AppendInt64(msgp.AppendString(b, "remaining_ms"), c.RemainingMS)
	}
	return b
}

// readCall reads a call from b, which checkShape has accepted. The raw parts of
// the call alias b.
func readCall(b []byte, c *Call) error {
	_, err := readMap(b, func(name, b []byte) (rest []byte, err error) {
		switch string(name) {
		case "v":
			c.V, rest, err = msgp.ReadIntBytes(b)
		case "key":
			c.Key, rest, err = msgp.ReadStringBytes(b)
		case "tag":
			c.Tag, rest, err = readWord(b)
		case "dialect":
			c.Dialect, rest, err = readWord(b)
		case "model":
			c.Model, rest, err = msgp.ReadStringBytes(b)
		case "messages":
			c.Messages, rest, err = readRawList(b)
		case "tools":
			c.Tools, rest, err = msgp.ReadBytesZC(b)
		case "params":
			c.Params, rest, err = readRawMap(b)
		case "base":
			c.Base, rest, err = msgp.ReadIntBytes(b)
		case "keep":
			c.Keep, rest, err = msgp.ReadIntBytes(b)
		case "digest":
			c.Digest, rest, err = msgp.ReadBytesZC(b)
		case "stream":
			c.Stream, rest, err = msgp.ReadBoolBytes(b)
		case "remaining_ms":
			c.RemainingMS, rest, err = msgp.ReadInt64Bytes(b)
		default:
			rest, err = msgp.Skip(b)
		}
		return rest, err
	})
	return err
}

// readWord reads a string. The usual values of tags, dialects and finish
// reasons become constants, without an allocation.
func readWord(b []byte) (string, []byte, error) {
	word, rest, err := msgp.ReadStringZC(b)
	if err != nil {
		return "", b, err
	}
	switch string(word) {
	case TagAgent:
		return TagAgent, rest, nil
	case "chat":
		return "chat", rest, nil
	case "messages":
		return "messages", rest, nil
	case "responses":
		return "responses", rest, nil
	case "stop":
		return "stop", rest, nil
	case "tool_calls":
		return "tool_calls", rest, nil
	default:
		return string(word), rest, nil
	}
}

func readRawList(b []byte) ([]json.RawMessage, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, b, err
	}
	list := make([]json.RawMessage, n) // checkShape has made sure that n values follow
	for i := range list {
		if list[i], b, err = msgp.ReadBytesZC(b); err != nil {
			return nil, b, err
		}
	}
	return list, b, nil
}

func readRawMap(b []byte) (SortedMap[json.RawMessage], []byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return nil, b, err
	}
	m := make(SortedMap[json.RawMessage], n)
	for range n {
		var name string
		var value []byte
		if name, b, err = msgp.ReadStringBytes(b); err != nil {
			return nil, b, err
		}
		if value, b, err = msgp.ReadBytesZC(b); err != nil {
			return nil, b, err
		}
		m[name] = value
	}
	return m, b, nil
}
