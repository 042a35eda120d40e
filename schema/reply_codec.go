package schema

import "github.com/tinylib/msgp/msgp"

// Replies, like calls, are written to and read from byte slices directly: they
// carry the packed arrays of a whole prompt.

// appendReply appends the reply as one msgpack map, in the form that the
// msgpack library would give it.
func appendReply(b []byte, r *Reply) []byte {
	raw := [...]struct {
		name  string
		value []byte
	}{
		{"prompt_ids", r.PromptIDs}, {"completion_ids", r.CompletionIDs}, {"logprobs", r.Logprobs},
		{"top_logprobs", r.TopLogprobs}, {"sampling", r.Sampling}, {"digest", r.Digest},
	}
	n := uint32(4)
	for _, f := range raw {
		if len(f.value) > 0 {
			n++
		}
	}
	if len(r.Versions) > 0 {
		n++
	}
	if len(r.Edits) > 0 {
		n++
	}
	if r.Retained {
		n++
	}
	b = msgp.AppendMapHeader(b, n)
	b = msgp.AppendInt(msgp.AppendString(b, "v"), r.V)
	b = msgp.AppendBytes(msgp.AppendString(b, "message"), r.Message)
	b = msgp.AppendString(msgp.AppendString(b, "finish_reason"), r.FinishReason)
	b = msgp.AppendMapHeader(msgp.AppendString(b, "usage"), 2)
	b = msgp.AppendInt64(msgp.AppendString(b, "prompt_tokens"), r.Usage.PromptTokens)
	b = msgp.AppendInt64(msgp.AppendString(b, "completion_tokens"), r.Usage.CompletionTokens)
	for _, f := range raw {
		if len(f.value) > 0 {
			b = msgp.AppendBytes(msgp.AppendString(b, f.name), f.value)
		}
	}
	if len(r.Versions) > 0 {
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "versions"), uint32(len(r.Versions)))
		for _, v := range r.Versions {
			b = msgp.AppendMapHeader(b, 3)
			b = msgp.AppendString(msgp.AppendString(b, "version"), v.Version)
			b = msgp.AppendInt(msgp.AppendString(b, "start"), v.Start)
			b = msgp.AppendInt(msgp.AppendString(b, "end"), v.End)
		}
	}
	if len(r.Edits) > 0 {
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "edits"), uint32(len(r.Edits)))
		for _, e := range r.Edits {
			b = msgp.AppendString(b, e)
		}
	}
	if r.Retained {
		b = msgp.AppendBool(msgp.AppendString(b, "retained"), true)
	}
	return b
}

// readReply reads a reply from b, which checkShape has accepted. The raw parts
// of the reply alias b.
func readReply(b []byte, r *Reply) error {
	_, err := readMap(b, func(name, b []byte) (rest []byte, err error) {
		switch string(name) {
		case "v":
			r.V, rest, err = msgp.ReadIntBytes(b)
		case "message":
			r.Message, rest, err = msgp.ReadBytesZC(b)
		case "finish_reason":
			r.FinishReason, rest, err = readWord(b)
		case "usage":
			rest, err = readUsage(b, &r.Usage)
		case "prompt_ids":
			r.PromptIDs, rest, err = msgp.ReadBytesZC(b)
		case "completion_ids":
			r.CompletionIDs, rest, err = msgp.ReadBytesZC(b)
		case "logprobs":
			r.Logprobs, rest, err = msgp.ReadBytesZC(b)
		case "top_logprobs":
			r.TopLogprobs, rest, err = msgp.ReadBytesZC(b)
		case "sampling":
			r.Sampling, rest, err = msgp.ReadBytesZC(b)
		case "digest":
			r.Digest, rest, err = msgp.ReadBytesZC(b)
		case "versions":
			r.Versions, rest, err = readVersions(b)
		case "edits":
			r.Edits, rest, err = readStrings(b)
		case "retained":
			r.Retained, rest, err = msgp.ReadBoolBytes(b)
		default:
			rest, err = msgp.Skip(b)
		}
		return rest, err
	})
	return err
}

// readMap calls f with each key and the bytes after it. f reads the value and
// returns the remaining bytes.
func readMap(b []byte, f func(name, b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range n {
		var name []byte
		if name, b, err = msgp.ReadStringZC(b); err != nil {
			return b, err
		}
		if b, err = f(name, b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func readUsage(b []byte, u *Usage) ([]byte, error) {
	return readMap(b, func(name, b []byte) (rest []byte, err error) {
		switch string(name) {
		case "prompt_tokens":
			u.PromptTokens, rest, err = msgp.ReadInt64Bytes(b)
		case "completion_tokens":
			u.CompletionTokens, rest, err = msgp.ReadInt64Bytes(b)
		default:
			rest, err = msgp.Skip(b)
		}
		return rest, err
	})
}

func readVersions(b []byte) ([]VersionSpan, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, b, err
	}
	list := make([]VersionSpan, n) // checkShape has made sure that n values follow
	for i := range list {
		b, err = readMap(b, func(name, b []byte) (rest []byte, err error) {
			switch string(name) {
			case "version":
				list[i].Version, rest, err = msgp.ReadStringBytes(b)
			case "start":
				list[i].Start, rest, err = msgp.ReadIntBytes(b)
			case "end":
				list[i].End, rest, err = msgp.ReadIntBytes(b)
			default:
				rest, err = msgp.Skip(b)
			}
			return rest, err
		})
		if err != nil {
			return nil, b, err
		}
	}
	return list, b, nil
}

func readStrings(b []byte) ([]string, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return nil, b, err
	}
	all := make([]string, n)
	for i := range all {
		if all[i], b, err = msgp.ReadStringBytes(b); err != nil {
			return nil, b, err
		}
	}
	return all, b, nil
}
