package history

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

const (
	maxItems   = 50_000 // of a conversation
	maxMembers = 250    // of a request
)

// parts is one body, split into its members and items.
type parts struct {
	array       string
	text        []byte       // the body
	names       []string     // of the members, in order
	values      []span       // of the members; empty for the array
	before      int          // members in front of the array
	items       []span       // elements of the array
	fingerprint uint64       // hash of the text
	sum         maphash.Hash // hash of the text up to summed, the end of an item
	summed      int
	groups      []group           // of items, in order
	converted   []json.RawMessage // the first messages, then the converted items; append-only
	first       int               // number of first messages
	mend        bool              // the text has characters that are not Unicode; values have U+FFFD instead
}

// span is a part of a body.
type span struct{ from, to int }

// within returns the number of items that end in the first bytes bytes.
func (p *parts) within(bytes int) int {
	items := len(p.items)
	for items > 0 && p.items[items-1].to > bytes {
		items--
	}
	return items
}

// end returns the offset of the end of the first items items.
func (p *parts) end(items int) int {
	if items == 0 {
		return 0
	}
	return p.items[items-1].to
}

// hashText hashes the text. It starts from the hash of the items that are
// shared with an earlier body and likely with the next one.
func (p *parts) hashText(keep int, seed maphash.Seed) {
	if p.summed == 0 {
		p.sum.SetSeed(seed)
	}
	end := p.end(keep)
	_, _ = p.sum.Write(p.text[p.summed:end]) // never fails
	p.summed = end
	whole := p.sum
	_, _ = whole.Write(p.text[end:])
	p.fingerprint = whole.Sum64()
}

// cut keeps the members before the array and its first keep items.
func (p *parts) cut(keep int) {
	p.names, p.values, p.items = p.names[:p.before], p.values[:p.before], p.items[:keep]
	if p.summed > p.end(keep) {
		p.summed = 0
	}
}

// fork returns a copy with the parts that cut would keep.
func (p *parts) fork(keep int) *parts {
	f := &parts{array: p.array, before: p.before, mend: p.mend}
	f.names, f.values = slices.Clone(p.names[:p.before]), slices.Clone(p.values[:p.before])
	f.items, f.groups, f.converted, f.first = slices.Clone(p.items[:keep]), slices.Clone(p.groups), slices.Clip(p.converted), p.first
	return f
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	at := 0
	for _, step := range [...]int{16 << 10, 1 << 10} {
		for at+step <= n && bytes.Equal(a[at:at+step], b[at:at+step]) {
			at += step
		}
	}
	for ; at+8 <= n; at += 8 {
		if x := binary.LittleEndian.Uint64(a[at:]) ^ binary.LittleEndian.Uint64(b[at:]); x != 0 {
			return at + bits.TrailingZeros64(x)/8
		}
	}
	for at < n && a[at] == b[at] {
		at++
	}
	return at
}

// read reads the members from the decoder. shift is the difference between an
// offset in the body and one in the decoder. resumed says that the decoder
// begins with an item that is already known.
func (p *parts) read(d *jsontext.Decoder, shift int, resumed bool) error {
	if t, err := d.ReadToken(); err != nil {
		return err
	} else if t.Kind() != '{' {
		return errors.New("not a JSON object")
	}
	for d.PeekKind() == '"' {
		t, err := d.ReadToken()
		if err != nil {
			return err
		}
		name := t.String()
		if slices.Contains(p.names, name) {
			return fmt.Errorf("%.80q is there twice", name)
		}
		if len(p.names) == maxMembers {
			return &SizeError{fmt.Sprintf("The request has more than %d members.", maxMembers)}
		}
		var at span
		if name == p.array && d.PeekKind() == '[' {
			p.before = len(p.names)
			err = p.readItems(d, shift, resumed)
		} else {
			var v jsontext.Value
			if v, err = d.ReadValue(); err == nil {
				err = bounded(v, "%.80s", name)
			}
			end := int(d.InputOffset()) + shift
			at = span{end - len(v), end}
		}
		if err != nil {
			return err
		}
		p.names, p.values = append(p.names, name), append(p.values, at)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(p.text[int(d.InputOffset())+shift:]); len(rest) > 0 {
		return errors.New("something follows the JSON object")
	}
	return nil
}

func (p *parts) readItems(d *jsontext.Decoder, shift int, resumed bool) error {
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for skip := resumed; d.PeekKind() != ']'; skip = false {
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		if v.Kind() != '{' {
			return fmt.Errorf("every one of %s must be an object", p.array)
		}
		if end := int(d.InputOffset()) + shift; !skip {
			if len(p.items) == maxItems {
				return &SizeError{fmt.Sprintf("The request has more than %d of %s.", maxItems, p.array)}
			}
			if err := bounded(v, "%s.%d", p.array, len(p.items)); err != nil {
				return err
			}
			p.items = append(p.items, span{end - len(v), end})
		}
	}
	_, err := d.ReadToken()
	return err
}

// bounded checks the bounds of a value. Its error begins with the name of the value.
func bounded(v jsontext.Value, format string, name ...any) error {
	if err := rawjson.Bound(v, rawjson.MaxNesting); err != nil {
		return fmt.Errorf(format+": %w", append(name, err)...)
	}
	return nil
}

// value returns a part of the body. It is valid while the reader is locked.
func (p *parts) value(at span) jsontext.Value {
	v := p.text[at.from:at.to:at.to]
	if p.mend {
		v, _ = rawjson.Mend(v)
	}
	return v
}

// Len returns the number of items of the conversation.
func (p *parts) Len() int { return len(p.items) }

// Item returns an item of the conversation. It is valid while the reader is
// locked.
func (p *parts) Item(i int) jsontext.Value { return p.value(p.items[i]) }

// Member returns a member of the request by name; nil if it is absent.
func (p *parts) Member(name string) jsontext.Value {
	for i, n := range p.names {
		if n == name {
			return p.value(p.values[i])
		}
	}
	return nil
}
