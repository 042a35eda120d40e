package schema

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// The normal form of every message is made twice for every call, by the worker
// and by the trainer, so the usual message goes a short way: one pass over
// plain JSON that a decoder has seen before. Whatever is unusual (names that
// are not ASCII or are there twice, deep nesting, what is no JSON at all) goes
// the long way of digest.go, which says what the normal form is.

// rules are what the normal form drops and simplifies at a place of a message.
type rules uint8

const (
	asIs      rules = iota
	inMessage       // a message: no cache_control, its content as below
	inContent       // a content: its parts have no cache_control, a single text is a string
	inTools         // a list whose elements have no cache_control
	inPart          // such an element or part
)

// appendNormal appends the normal form of v. ok is false when v is not of the
// plain kind; what was appended then means nothing.
func appendNormal(dst []byte, v []byte, r rules) (out []byte, ok bool) {
	p := PlainReader{in: v}
	p.space()
	if out, ok = p.value(dst, r, 0); !ok {
		return out, false
	}
	p.space()
	return out, p.at == len(v)
}

func (p *PlainReader) value(dst []byte, r rules, depth int) ([]byte, bool) {
	if p.at >= len(p.in) || depth > maxPlainDepth {
		return dst, false
	}
	switch c := p.in[p.at]; c {
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

func (p *PlainReader) word(dst []byte, w string) ([]byte, bool) {
	return append(dst, w...), p.skipWord(w)
}

// number copies an integer that every JSON reader keeps as it is; any other
// number is written as the standard says.
func (p *PlainReader) number(dst []byte) ([]byte, bool) {
	from := p.at
	if !p.skipNumber() {
		return dst, false
	}
	n := jsontext.Value(p.in[from:p.at])
	if len(n) <= 15 && !bytes.ContainsAny(n, ".eE") && string(n) != "-0" {
		return append(dst, n...), true
	}
	n = bytes.Clone(n)
	err := n.Canonicalize()
	return append(dst, n...), err == nil
}

// text copies a string, whose usual escapes are those of the normal form.
func (p *PlainReader) text(dst []byte) ([]byte, bool) {
	from := p.at
	usual, ok := p.skipText()
	if !ok {
		return dst, false
	}
	s := p.in[from:p.at]
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

func (p *PlainReader) array(dst []byte, r rules, depth int) ([]byte, bool) {
	inner := asIs
	if r == inContent || r == inTools {
		inner = inPart
	}
	begin, n := len(dst), 0
	dst = append(dst, '[')
	p.at++
	if p.Next(']') {
		return append(dst, ']'), true
	}
	for {
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		p.space()
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
			// In the normal form it begins and ends like this. Whether the text
			// itself ends where it seems to is seen by its length.
			text := only[len(before) : len(only)-len(behind)]
			if s := (PlainReader{in: text}); s.isText() {
				dst = append(dst[:begin], text...)
			}
		}
	}
	return dst, true
}

// isText reports whether all of it is one string.
func (p *PlainReader) isText() bool {
	_, ok := p.skipText()
	return ok && p.at == len(p.in)
}

// member is one of an object, as it was written: where it begins, how long its
// name is, where it ends.
type member struct{ from, name, to int32 }

func (m member) nameIn(dst []byte) []byte { return dst[m.from+1 : m.from+1+m.name] }

func (p *PlainReader) object(dst []byte, r rules, depth int) ([]byte, bool) {
	p.at++
	if p.Next('}') {
		return append(dst, '{', '}'), true
	}
	var few [8]member
	members := few[:0]
	begin, sorted, dropped := len(dst), true, false
	dst = append(dst, '{')
	for {
		name, ok := p.Name()
		if !ok || len(members) == maxPlainMembers {
			return dst, false
		}
		p.space()
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

// order sorts the members of the object that was written from begin on by
// their names.
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
