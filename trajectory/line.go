package trajectory

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// lineReader reads lines of a transcript. Token ids are most of a transcript, so
// it reads the recorder's form of a line in one pass. Any other form is read by
// encoding/json. Both give the same line.
type lineReader struct {
	line     schema.TranscriptLine
	call     schema.Call
	reply    schema.Reply
	messages []json.RawMessage
	prompt   []byte // room for ids, reused
}

// read returns the line. It is valid until the next call of read, and refers to
// data.
func (d *lineReader) read(data []byte) (*schema.TranscriptLine, error) {
	d.line = schema.TranscriptLine{}
	if d.plain(data) {
		return &d.line, nil
	}
	d.line = schema.TranscriptLine{}
	if err := json.Unmarshal(data, &d.line); err != nil {
		return nil, err
	}
	return &d.line, nil
}

func (d *lineReader) plain(data []byte) bool {
	p := rawjson.Read(data, 0)
	return eachMember(&p, func(name []byte) bool {
		switch l := &d.line; string(name) {
		case "at":
			return number(&p, data, &l.At)
		case "call":
			return number(&p, data, &l.Call)
		case "ms":
			return number(&p, data, &l.MS)
		case "left_out":
			return number(&p, data, &l.LeftOut)
		case "gen":
			return str(&p, data, &l.Gen)
		case "request":
			if l.Request != nil {
				return false
			}
			d.call = schema.Call{}
			l.Request = &d.call
			return d.request(&p, data)
		case "reply":
			if l.Reply != nil {
				return false
			}
			d.reply = schema.Reply{}
			l.Reply = &d.reply
			return d.answer(&p, data)
		case "fault":
			return other(&p, data, &l.Fault)
		}
		return false // a tool's line: short and rare
	}) && p.End()
}

func (d *lineReader) request(p *rawjson.Reader, data []byte) bool {
	c := &d.call
	return eachMember(p, func(name []byte) bool {
		switch string(name) {
		case "v":
			return number(p, data, &c.V)
		case "key":
			return str(p, data, &c.Key)
		case "tag":
			return str(p, data, &c.Tag)
		case "dialect":
			return str(p, data, &c.Dialect)
		case "model":
			return str(p, data, &c.Model)
		case "base":
			return number(p, data, &c.Base)
		case "keep":
			return number(p, data, &c.Keep)
		case "remaining_ms":
			return number(p, data, &c.RemainingMS)
		case "messages":
			d.messages = d.messages[:0]
			c.Messages = d.messages
			return each(p, '[', ']', func() bool {
				v, ok := value(p, data)
				d.messages = append(d.messages, v)
				c.Messages = d.messages
				return ok
			})
		case "tools":
			return raw(p, data, &c.Tools) && string(c.Tools) != "null"
		case "params":
			return other(p, data, &c.Params)
		case "digest":
			return other(p, data, &c.Digest)
		case "stream":
			return other(p, data, &c.Stream)
		}
		return false
	})
}

func (d *lineReader) answer(p *rawjson.Reader, data []byte) bool {
	r := &d.reply
	return eachMember(p, func(name []byte) (ok bool) {
		switch string(name) {
		case "v":
			return number(p, data, &r.V)
		case "message":
			return raw(p, data, &r.Message)
		case "finish_reason":
			return str(p, data, &r.FinishReason)
		case "usage":
			return other(p, data, &r.Usage)
		case "prompt_ids":
			d.prompt, ok = tokenIDs(p, data, d.prompt[:0])
			r.PromptIDs = d.prompt
			return ok
		case "completion_ids":
			r.CompletionIDs, ok = tokenIDs(p, data, nil)
			return ok
		case "logprobs":
			r.Logprobs, ok = logprobs(p, data)
			return ok
		case "versions":
			return other(p, data, &r.Versions)
		case "top_logprobs":
			return raw(p, data, &r.TopLogprobs)
		case "sampling":
			return raw(p, data, &r.Sampling)
		case "edits":
			return other(p, data, &r.Edits)
		case "retained":
			return other(p, data, &r.Retained)
		case "digest":
			return other(p, data, &r.Digest)
		}
		return false
	})
}

// eachMember calls f behind the name of every member of an object.
func eachMember(p *rawjson.Reader, f func(name []byte) bool) bool {
	return each(p, '{', '}', func() bool {
		name, ok := p.Name()
		return ok && f(name)
	})
}

// each calls f before every member of an object, or every element of an array.
func each(p *rawjson.Reader, open, end byte, f func() bool) bool {
	if !p.Next(open) {
		return false
	}
	for first := true; !p.Next(end); first = false {
		if !first && !p.Next(',') || !f() {
			return false
		}
	}
	return true
}

// value returns the bytes of a value.
func value(p *rawjson.Reader, data []byte) (json.RawMessage, bool) {
	from, ok := p.Value()
	if !ok {
		return nil, false
	}
	return data[from:p.At:p.At], true
}

// raw reads a value as it is.
func raw(p *rawjson.Reader, data []byte, into *json.RawMessage) (ok bool) {
	*into, ok = value(p, data)
	return ok
}

// other reads a value that is short.
func other(p *rawjson.Reader, data []byte, into any) bool {
	v, ok := value(p, data)
	return ok && json.Unmarshal(v, into) == nil
}

func number[N int | int64](p *rawjson.Reader, data []byte, into *N) bool {
	v, ok := value(p, data)
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	*into = N(n)
	return err == nil
}

func str(p *rawjson.Reader, data []byte, into *string) bool {
	v, ok := value(p, data)
	if !ok || v[0] != '"' {
		return false
	}
	if bytes.IndexByte(v, '\\') >= 0 {
		return json.Unmarshal(v, into) == nil
	}
	*into = string(v[1 : len(v)-1])
	return true
}

// tokenIDs appends a list of token ids to room, packed as in schema.TokenIDs.
// The list has no white space.
func tokenIDs(p *rawjson.Reader, data, room []byte) ([]byte, bool) {
	if !p.Next('[') {
		return room, false
	}
	at := p.At
	for at < len(data) && data[at] != ']' {
		if len(room) > 0 {
			if data[at] != ',' {
				return room, false
			}
			at++
		}
		negative := at < len(data) && data[at] == '-'
		if negative {
			at++
		}
		from, n := at, int64(0)
		for at < len(data) {
			digit := data[at] - '0'
			if digit > 9 {
				break
			}
			n = n*10 + int64(digit)
			at++
		}
		if at == from || at-from > 10 || data[from] == '0' && at-from > 1 {
			return room, false
		}
		if negative {
			n = -n
		}
		if n > math.MaxInt32 || n < math.MinInt32 {
			return room, false
		}
		room = binary.LittleEndian.AppendUint32(room, uint32(n))
	}
	*p = rawjson.Read(data, at)
	return room, p.Next(']')
}

// logprobs reads a list of numbers or null, which is negative infinity.
func logprobs(p *rawjson.Reader, data []byte) ([]byte, bool) {
	var out []byte
	ok := each(p, '[', ']', func() bool {
		v, ok := value(p, data)
		if !ok {
			return false
		}
		f := float32(math.Inf(-1))
		if string(v) != "null" {
			n, err := strconv.ParseFloat(string(v), 32)
			if err != nil {
				return false
			}
			f = float32(n)
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
		return true
	})
	return out, ok
}
