package schema

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// The worker and the trainer both compute the normal form of every message of
// every call, so this file has a fast path: one pass over plain JSON (see
// rawjson.Reader). All other input (names that are repeated or not ASCII, deep
// nesting, invalid JSON) takes the slow path in digest.go, which defines the
// normal form.

// rules selects the changes that the normal form makes to a value, by the place
// of the value in a call.
type rules uint8

const (
	asIs      rules = iota
	inMessage       // a message: cache_control is dropped, content follows inContent
	inContent       // a content: parts follow inPart, a single text part becomes a string
	inTools         // a list of tools: elements follow inPart
	inPart          // an element or part: cache_control is dropped
)

// normalizer writes the normal form of the values that it reads.
type normalizer struct{ rawjson.Reader }

// appendNormal appends the normal form of v. If ok is false, v is not plain
// JSON and out must not be used.
func appendNormal(dst []byte, v []byte, r rules) (out []byte, ok bool) {
	p := normalizer{rawjson.Read(v, 0)}
	p.Space()
	if out, ok = p.value(dst, r, 0); !ok {
		return out, false
	}
	p.Space()
	return out, p.At == len(v)
}

func (p *normalizer) value(dst []byte, r rules, depth int) ([]byte, bool) {
	if p.At >= len(p.In) || depth > rawjson.MaxDepth {
		return dst, false
	}
	switch c := p.In[p.At]; c {
	case '{':
		return p.object(dst, r, depth)
	case '[':
		return p.array(dst, r, depth)
	case '"':
		return p.text(dst)
	case 't':
		return p.word(dst, "true")
	case 'f':
		return p.word(dst, "false")
	case 'n':
		return p.word(dst, "null")
	default:
		return p.number(dst)
	}
}

func (p *normalizer) word(dst []byte, w string) ([]byte, bool) {
	return append(dst, w...), p.SkipWord(w)
}

// number copies an integer of at most 15 digits, which is its own canonical
// form; any other number is written in its RFC 8785 form.
func (p *normalizer) number(dst []byte) ([]byte, bool) {
	from := p.At
	if !p.SkipNumber() {
		return dst, false
	}
	n := jsontext.Value(p.In[from:p.At])
	if len(n) <= 15 && !bytes.ContainsAny(n, ".eE") && string(n) != "-0" {
		return append(dst, n...), true
	}
	n = bytes.Clone(n)
	err := n.Canonicalize()
	return append(dst, n...), err == nil
}

// text copies a string if its escapes are canonical, and rewrites it otherwise.
func (p *normalizer) text(dst []byte) ([]byte, bool) {
	from := p.At
	usual, ok := p.SkipText()
	if !ok {
		return dst, false
	}
	s := p.In[from:p.At]
	if usual {
		return append(dst, s...), true
	}
	raw, err := jsontext.AppendUnquote(nil, s)
	if err != nil {
		return dst, false
	}
	quoted, err := jsontext.AppendQuote(nil, raw)
	return append(dst, quoted...), err == nil
}

func (p *normalizer) array(dst []byte, r rules, depth int) ([]byte, bool) {
	inner := asIs
	if r == inContent || r == inTools {
		inner = inPart
	}
	begin, n := len(dst), 0
	dst = append(dst, '[')
	p.At++
	if p.Next(']') {
		return append(dst, ']'), true
	}
	for {
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		p.Space()
		var ok bool
		if dst, ok = p.value(dst, inner, depth+1); !ok {
			return dst, false
		}
		if p.Next(']') {
			break
		}
		if !p.Next(',') {
			return dst, false
		}
	}
	dst = append(dst, ']')
	if r == inContent && n == 1 {
		const before, behind = `[{"text":`, `,"type":"text"}]`
		if only := dst[begin:]; bytes.HasPrefix(only, []byte(before+`"`)) && bytes.HasSuffix(only, []byte(`"`+behind)) {
			// The normal form of a single text part has this prefix and suffix. The
			// part has no other members if all bytes between them are one string.
			text := only[len(before) : len(only)-len(behind)]
			if s := (normalizer{rawjson.Read(text, 0)}); s.isText() {
				dst = append(dst[:begin], text...)
			}
		}
	}
	return dst, true
}

// isText reports whether the whole input is one string.
func (p *normalizer) isText() bool {
	_, ok := p.SkipText()
	return ok && p.At == len(p.In)
}

// member is a member of an object in the output: the offsets of its beginning
// and end, and the length of its name.
type member struct{ from, name, to int32 }

func (m member) nameIn(dst []byte) []byte { return dst[m.from+1 : m.from+1+m.name] }

func (p *normalizer) object(dst []byte, r rules, depth int) ([]byte, bool) {
	p.At++
	if p.Next('}') {
		return append(dst, '{', '}'), true
	}
	var few [8]member
	members := few[:0]
	begin, sorted, dropped := len(dst), true, false
	dst = append(dst, '{')
	for {
		name, ok := p.Name()
		if !ok || len(members) == rawjson.MaxMembers {
			return dst, false
		}
		p.Space()
		drop := (r == inMessage || r == inPart) && string(name) == "cache_control"
		inner := asIs
		if r == inMessage && string(name) == "content" {
			inner = inContent
		}
		before := len(dst)
		if len(members) > 0 {
			dst = append(dst, ',')
			switch bytes.Compare(members[len(members)-1].nameIn(dst), name) {
			case 0:
				return dst, false
			case 1:
				sorted = false
			}
		}
		from := len(dst)
		dst = append(append(append(dst, '"'), name...), '"', ':')
		if dst, ok = p.value(dst, inner, depth+1); !ok {
			return dst, false
		}
		switch {
		case drop && dropped:
			return dst, false
		case drop:
			dst, dropped = dst[:before], true
		default:
			members = append(members, member{int32(from), int32(len(name)), int32(len(dst))})
		}
		if p.Next('}') {
			break
		}
		if !p.Next(',') {
			return dst, false
		}
	}
	if dst = append(dst, '}'); sorted {
		return dst, true
	}
	return order(dst, begin, members)
}

// order sorts the members of the object that begins at dst[begin] by name.
func order(dst []byte, begin int, members []member) ([]byte, bool) {
	for i := 1; i < len(members); i++ { // they are few
		for j := i; j > 0; j-- {
			c := bytes.Compare(members[j-1].nameIn(dst), members[j].nameIn(dst))
			if c == 0 {
				return dst, false
			}
			if c < 0 {
				break
			}
			members[j-1], members[j] = members[j], members[j-1]
		}
	}
	end := len(dst)
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, dst[m.from:m.to]...)
	}
	dst = append(dst, '}')
	n := copy(dst[begin:], dst[end:])
	return dst[:begin+n], true
}
