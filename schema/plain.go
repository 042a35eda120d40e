package schema

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// PlainReader reads JSON of the plain kind, which nearly all of what agents
// send is: names are ASCII without escapes and are there once, nothing is
// nested deeply, strings are valid Unicode. Its methods are false for what is
// not of that kind; whether that is JSON is for a library to say.
type PlainReader struct {
	in []byte
	at int
}

const (
	maxPlainDepth   = 32
	maxPlainMembers = 64
)

// ReadPlain begins at an offset.
func ReadPlain(in []byte, at int) PlainReader { return PlainReader{in, at} }

// Offset is how far it has read.
func (p *PlainReader) Offset() int { return p.at }

func (p *PlainReader) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// Next skips white space, and c if it follows.
func (p *PlainReader) Next(c byte) bool {
	p.space()
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

// End reports whether nothing but white space follows.
func (p *PlainReader) End() bool {
	p.space()
	return p.at == len(p.in)
}

// Name reads the name of a member, and the colon behind it.
func (p *PlainReader) Name() ([]byte, bool) {
	p.space()
	if p.at >= len(p.in) || p.in[p.at] != '"' {
		return nil, false
	}
	from := p.at + 1
	p.at = from + plainText(p.in[from:])
	if p.at >= len(p.in) || p.in[p.at] != '"' {
		return nil, false
	}
	name := p.in[from:p.at]
	p.at++
	return name, p.Next(':')
}

// Value reads a value, and says where it begins.
func (p *PlainReader) Value() (from int, ok bool) {
	p.space()
	from = p.at
	return from, p.skip(0)
}

func (p *PlainReader) skip(depth int) bool {
	if p.at >= len(p.in) || depth > maxPlainDepth {
		return false
	}
	switch p.in[p.at] {
	case '{':
		return p.skipObject(depth)
	case '[':
		return p.skipArray(depth)
	case '"':
		_, ok := p.skipText()
		return ok
	case 't':
		return p.skipWord("true")
	case 'f':
		return p.skipWord("false")
	case 'n':
		return p.skipWord("null")
	default:
		return p.skipNumber()
	}
}

func (p *PlainReader) skipWord(w string) bool {
	if len(p.in)-p.at < len(w) || string(p.in[p.at:p.at+len(w)]) != w {
		return false
	}
	p.at += len(w)
	return true
}

func (p *PlainReader) skipNumber() bool {
	if p.in[p.at] == '-' {
		p.at++
	}
	zero := p.at < len(p.in) && p.in[p.at] == '0'
	if n := p.digits(); n == 0 || zero && n > 1 {
		return false
	}
	if p.at < len(p.in) && p.in[p.at] == '.' {
		p.at++
		if p.digits() == 0 {
			return false
		}
	}
	if p.at < len(p.in) && p.in[p.at]|0x20 == 'e' {
		p.at++
		if p.at < len(p.in) && (p.in[p.at] == '+' || p.in[p.at] == '-') {
			p.at++
		}
		if p.digits() == 0 {
			return false
		}
	}
	return true
}

func (p *PlainReader) digits() (n int) {
	for ; p.at < len(p.in) && '0' <= p.in[p.at] && p.in[p.at] <= '9'; p.at++ {
		n++
	}
	return n
}

// skipText reads a string. usual: its escapes are those of the normal form.
func (p *PlainReader) skipText() (usual, ok bool) {
	p.at++
	from, ascii := p.at, true
	for usual = true; ; {
		p.at += plainText(p.in[p.at:])
		if p.at >= len(p.in) {
			return usual, false
		}
		switch c := p.in[p.at]; {
		case c == '"':
			p.at++
			return usual, ascii || utf8.Valid(p.in[from:p.at])
		case c == '\\':
			p.at++
			shortest, ok := p.skipEscape()
			if !ok {
				return usual, false
			}
			usual = usual && shortest
		case c >= utf8.RuneSelf:
			ascii = false
			p.at++
		default: // a control character
			return usual, false
		}
	}
}

// skipEscape reads what follows a backslash. usual: the normal form has the same
// escape. Surrogates are for a library.
func (p *PlainReader) skipEscape() (usual, ok bool) {
	if p.at >= len(p.in) {
		return false, false
	}
	c := p.in[p.at]
	p.at++
	switch c {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return true, true
	case '/':
		return false, true
	case 'u':
		return false, p.skipHex()
	}
	return false, false
}

// skipHex reads the four digits of a character that is no surrogate.
func (p *PlainReader) skipHex() bool {
	if p.at+4 > len(p.in) {
		return false
	}
	digits := p.in[p.at : p.at+4]
	p.at += 4
	for _, h := range digits {
		if (h < '0' || h > '9') && (h|0x20 < 'a' || h|0x20 > 'f') {
			return false
		}
	}
	return digits[0]|0x20 != 'd' || digits[1] < '8'
}

func (p *PlainReader) skipArray(depth int) bool {
	p.at++
	if p.Next(']') {
		return true
	}
	for {
		if p.space(); !p.skip(depth + 1) {
			return false
		}
		if p.Next(']') {
			return true
		}
		if !p.Next(',') {
			return false
		}
	}
}

func (p *PlainReader) skipObject(depth int) bool {
	p.at++
	if p.Next('}') {
		return true
	}
	var few [16][]byte
	names := few[:0]
	for {
		name, ok := p.Name()
		if !ok || len(names) == maxPlainMembers {
			return false
		}
		for _, before := range names {
			if string(before) == string(name) {
				return false
			}
		}
		names = append(names, name)
		if p.space(); !p.skip(depth + 1) {
			return false
		}
		if p.Next('}') {
			return true
		}
		if !p.Next(',') {
			return false
		}
	}
}

// IsJSON reports whether all of v is JSON.
func IsJSON(v []byte) bool {
	p := ReadPlain(v, 0)
	_, ok := p.Value()
	return ok && p.End() || jsontext.Value(v).IsValid()
}

// plainText counts the bytes that stand for themselves in a string: ASCII
// without quotes, escapes and control characters.
func plainText(b []byte) (n int) {
	for ; n+32 <= len(b); n += 32 {
		w := b[n : n+32]
		if unusual(w)|unusual(w[8:])|unusual(w[16:])|unusual(w[24:]) != 0 {
			break
		}
	}
	for ; n+8 <= len(b); n += 8 {
		if u := unusual(b[n:]); u != 0 {
			return n + bits.TrailingZeros64(u)/8
		}
	}
	for n < len(b) && b[n] >= 0x20 && b[n] < utf8.RuneSelf && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}

// unusual is 0 if eight bytes stand for themselves. Otherwise its lowest bit is
// in the first that does not; what is above that means nothing.
func unusual(b []byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	w := binary.LittleEndian.Uint64(b)
	quote, escape := w^('"'*ones), w^('\\'*ones)
	return (w | (w - 0x20*ones) | (quote - ones) | (escape - ones)) & tops
}
