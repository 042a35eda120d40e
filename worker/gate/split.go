package gate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// splitter takes the bodies of one session apart. Agents append: a body
// usually equals the one before byte for byte up to the end of the old
// conversation, so only what follows is parsed, and a call costs the same
// however long its conversation is.
type splitter struct {
	array string // the member that holds the conversation

	mu   sync.Mutex
	last *parts
}

// parts is one request, taken apart. Values are slices of body.
type parts struct {
	array  string
	body   []byte
	names  []string // of the members, in order
	values []jsontext.Value
	before int        // members in front of the array
	items  []span     // elements of the array
	folded []foldedTo // what the items became, for those dialects that convert
}

// span is a part of a body.
type span struct{ from, to int }

// split takes a body apart, and keeps it to compare the next one with.
func (s *splitter) split(body []byte) (p *parts, last *parts, keep int, err error) {
	s.mu.Lock()
	last = s.last
	s.mu.Unlock()
	p = &parts{array: s.array, body: body}
	if keep = last.shared(body); keep > 0 {
		p.names, p.values = append(p.names, last.names[:last.before]...), make([]jsontext.Value, last.before, len(last.values))
		for i := range p.values { // the same bytes, in this body
			at := offsetIn(last.body, last.values[i])
			p.values[i] = body[at : at+len(last.values[i])]
		}
		p.before = last.before
		p.items = append(make([]span, 0, len(last.items)+8), last.items[:keep]...)
		// Read on behind the last shared item, as if it were {}.
		as := `{"` + s.array + `":[{}`
		from := p.items[keep-1].to
		rest := append(append(make([]byte, 0, len(as)+len(body)-from), as...), body[from:]...)
		return p, last, keep, p.read(jsontext.NewDecoder(bytes.NewBuffer(rest)), from-len(as), true)
	}
	return p, last, 0, p.read(jsontext.NewDecoder(bytes.NewBuffer(body)), 0, false)
}

// keep remembers a body that was decoded whole.
func (s *splitter) keep(p *parts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = p
}

// Close implements Decoder.
func (s *splitter) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = nil
}

// forget drops a body, if it is still the one that is kept.
func (s *splitter) forget(p *parts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == p {
		s.last = nil
	}
}

// shared counts the items that body has in common with an earlier one.
func (p *parts) shared(body []byte) int {
	if p == nil {
		return 0
	}
	n := commonPrefix(p.body, body)
	keep := len(p.items)
	for keep > 0 && p.items[keep-1].to > n {
		keep--
	}
	return keep
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	const step = 4096
	at := 0
	for at < n && bytes.Equal(a[at:min(at+step, n)], b[at:min(at+step, n)]) {
		at += step
	}
	at = min(at, n)
	for at < n && a[at] == b[at] {
		at++
	}
	return at
}

// offsetIn is where a slice of body begins.
func offsetIn(body, part []byte) int { return cap(body) - cap(part) }

// read takes members off the decoder, whose offsets are shift less than the
// body's. resumed: it stands behind an item that is already known.
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
			return fmt.Errorf("%q is there twice", name)
		}
		var v jsontext.Value
		if name == p.array && d.PeekKind() == '[' {
			p.before = len(p.names)
			err = p.readItems(d, shift, resumed)
		} else {
			v, err = d.ReadValue()
			end := int(d.InputOffset()) + shift
			if err == nil {
				v = p.body[end-len(v) : end]
			}
		}
		if err != nil {
			return err
		}
		p.names, p.values = append(p.names, name), append(p.values, v)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(p.body[int(d.InputOffset())+shift:]); len(rest) > 0 {
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
			p.items = append(p.items, span{end - len(v), end})
		}
	}
	_, err := d.ReadToken()
	return err
}

// item is an element of the conversation.
func (p *parts) item(i int) jsontext.Value {
	at := p.items[i]
	return jsontext.Value(p.body[at.from:at.to:at.to])
}

// eachMember calls f for every member but the conversation.
func (p *parts) eachMember(f func(name string, value jsontext.Value) error) error {
	for i, name := range p.names {
		if name == p.array && p.values[i] == nil {
			continue
		}
		if err := f(name, p.values[i]); err != nil {
			return err
		}
	}
	return nil
}
