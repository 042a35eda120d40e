package rawjson

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Reader reads plain JSON: names are unique ASCII without escapes, objects
// have at most 64 members, nesting is at most 32 deep, numbers are short,
// strings are valid Unicode. Agents send almost nothing else. Its methods return
// false for any other input, which may still be JSON: use a JSON library for it.
type Reader struct {
	In []byte // the whole input
	At int    // offset of the next byte to read
}

// Bounds of plain JSON.
const (
	MaxDepth   = 32 // of values inside each other
	MaxMembers = 64 // of an object
	// maxDigits bounds the digits of a number before its exponent, maxExponent those
	// of the exponent. A double in shortest form has fewer.
	maxDigits   = 40
	maxExponent = 2
)

// Read returns a reader of in that begins at the offset at.
func Read(in []byte, at int) Reader { return Reader{in, at} }

// Space skips white space.
func (p *Reader) Space() {
	for p.At < len(p.In) {
		switch p.In[p.At] {
		case ' ', '\t', '\n', '\r':
			p.At++
		default:
			return
		}
	}
}

// Next skips white space, and c if it follows.
func (p *Reader) Next(c byte) bool {
	p.Space()
	if p.At < len(p.In) && p.In[p.At] == c {
		p.At++
		return true
	}
	return false
}

// End reports whether only white space follows.
func (p *Reader) End() bool {
	p.Space()
	return p.At == len(p.In)
}

// Name reads the name of a member, and the colon behind it.
func (p *Reader) Name() ([]byte, bool) {
	p.Space()
	if p.At >= len(p.In) || p.In[p.At] != '"' {
		return nil, false
	}
	from := p.At + 1
	p.At = from + plainText(p.In[from:])
	if p.At >= len(p.In) || p.In[p.At] != '"' {
		return nil, false
	}
	name := p.In[from:p.At]
	p.At++
	return name, p.Next(':')
}

// Value reads a value and returns the offset of its first byte.
func (p *Reader) Value() (from int, ok bool) {
	p.Space()
	from = p.At
	return from, p.skip(0)
}

func (p *Reader) skip(depth int) bool {
	if p.At >= len(p.In) || depth > MaxDepth {
		return false
	}
	switch p.In[p.At] {
	case '{':
		return p.skipObject(depth)
	case '[':
		return p.skipArray(depth)
	case '"':
		_, ok := p.SkipText()
		return ok
	case 't':
		return p.SkipWord("true")
	case 'f':
		return p.SkipWord("false")
	case 'n':
		return p.SkipWord("null")
	default:
		return p.SkipNumber()
	}
}

// SkipWord skips the word w. It returns false if another text follows.
func (p *Reader) SkipWord(w string) bool {
	if len(p.In)-p.At < len(w) || string(p.In[p.At:p.At+len(w)]) != w {
		return false
	}
	p.At += len(w)
	return true
}

// SkipNumber skips a number.
func (p *Reader) SkipNumber() bool {
	if p.In[p.At] == '-' {
		p.At++
	}
	zero := p.At < len(p.In) && p.In[p.At] == '0'
	if n := p.digits(); n == 0 || n > maxDigits || zero && n > 1 {
		return false
	}
	if p.At < len(p.In) && p.In[p.At] == '.' {
		p.At++
		if n := p.digits(); n == 0 || n > maxDigits {
			return false
		}
	}
	if p.At < len(p.In) && p.In[p.At]|0x20 == 'e' {
		p.At++
		if p.At < len(p.In) && (p.In[p.At] == '+' || p.In[p.At] == '-') {
			p.At++
		}
		if n := p.digits(); n == 0 || n > maxExponent {
			return false
		}
	}
	return true
}

func (p *Reader) digits() (n int) {
	for ; p.At < len(p.In) && '0' <= p.In[p.At] && p.In[p.At] <= '9'; p.At++ {
		n++
	}
	return n
}

// SkipText skips a string. usual reports whether the canonical
// form of RFC 8785 has the same escapes.
func (p *Reader) SkipText() (usual, ok bool) {
	p.At++
	from, ascii := p.At, true
	for usual = true; ; {
		p.At += plainText(p.In[p.At:])
		if p.At >= len(p.In) {
			return usual, false
		}
		switch c := p.In[p.At]; {
		case c == '"':
			p.At++
			return usual, ascii || utf8.Valid(p.In[from:p.At])
		case c == '\\':
			p.At++
			shortest, ok := p.skipEscape()
			if !ok {
				return usual, false
			}
			usual = usual && shortest
		case c >= utf8.RuneSelf:
			ascii = false
			p.At++
		default: // a control character
			return usual, false
		}
	}
}

// skipEscape reads an escape after its backslash. usual reports whether the
// canonical form has the same escape. Surrogates are not plain.
func (p *Reader) skipEscape() (usual, ok bool) {
	if p.At >= len(p.In) {
		return false, false
	}
	c := p.In[p.At]
	p.At++
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
func (p *Reader) skipHex() bool {
	if p.At+4 > len(p.In) {
		return false
	}
	digits := p.In[p.At : p.At+4]
	p.At += 4
	for _, h := range digits {
		if (h < '0' || h > '9') && (h|0x20 < 'a' || h|0x20 > 'f') {
			return false
		}
	}
	return digits[0]|0x20 != 'd' || digits[1] < '8'
}

func (p *Reader) skipArray(depth int) bool {
	p.At++
	if p.Next(']') {
		return true
	}
	for {
		if p.Space(); !p.skip(depth + 1) {
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

func (p *Reader) skipObject(depth int) bool {
	p.At++
	if p.Next('}') {
		return true
	}
	var few [16][]byte
	names := few[:0]
	for {
		name, ok := p.Name()
		if !ok || len(names) == MaxMembers {
			return false
		}
		for _, before := range names {
			if string(before) == string(name) {
				return false
			}
		}
		names = append(names, name)
		if p.Space(); !p.skip(depth + 1) {
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
	p := Read(v, 0)
	_, ok := p.Value()
	return ok && p.End() || jsontext.Value(v).IsValid()
}

// plainText counts the literal bytes at the beginning of b: ASCII except
// quotes, backslashes and control characters.
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

// unusual returns 0 if the first eight bytes of b are literal. Otherwise the
// lowest bit that is set is in the first byte that is not literal; higher bits
// have no meaning.
func unusual(b []byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	w := binary.LittleEndian.Uint64(b)
	quote, escape := w^('"'*ones), w^('\\'*ones)
	return (w | (w - 0x20*ones) | (quote - ones) | (escape - ones)) & tops
}
