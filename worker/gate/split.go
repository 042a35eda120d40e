package gate

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// splitter takes the bodies of one session apart. Agents append: a body
// usually equals an earlier one byte for byte up to the end of the old
// conversation, so only what follows is parsed, and a call costs the same
// however long its conversation is.
//
// It keeps the newest bodies, which grow in place. What a decoder gives away
// does not alias them, so that their memory can be used again.
type splitter struct {
	array  string // the member that holds the conversation
	hashes bool   // its items are canonical messages, and are hashed while they are read
	memory *Memory

	mu       sync.Mutex // held while a body is decoded
	branches []*parts   // the newest body of each conversation, oldest first
	rest     rest       // of the newest body
}

// scratch is what reading, parsing and hashing take.
type scratch struct {
	chunk   [chunkSize]byte
	decoder jsontext.Decoder
	rest    []byte
	hasher  schema.Hasher
}

// maxBranches is how many conversations are told apart: an agent's own, and
// those of sub-agents beside it.
const maxBranches = 3

// parts is one body, taken apart.
type parts struct {
	array  string
	text   []byte        // the body
	names  []string      // of the members, in order
	values []span        // of the members; empty for the array
	before int           // members in front of the array
	items  []span        // elements of the array
	fresh  []schema.Hash // of the items that were new, as far as they were hashed
	print  uint64        // of the text: equal bodies have the same
	sum    maphash.Hash  // of the text up to summed, the end of an item
	summed int
	groups []group           // of items, in order
	said   []json.RawMessage // what comes first, then what the items became; only ever appended to
	first  int               // messages that come first
}

// span is a part of a body.
type span struct{ from, to int }

// split takes a body apart. keep says how many items, which are folded already,
// it shares with an earlier one. The caller has the lock until all of the
// request is decoded, and calls keep if it is a good one.
func (s *splitter) split(body Body) (p *parts, keep int, err error) {
	p, keep = body.parts, body.keep
	p.takePrint(keep, s.memory.seed)
	using := s.memory.scratch()
	defer s.memory.scratches.Put(using)
	hasher := &using.hasher
	if !s.hashes {
		hasher = nil
	}
	p.fresh = p.fresh[:0]
	if p.skim(keep, hasher) {
		return p, keep, nil
	}
	if keep == 0 {
		p.before = 0
	}
	p.cut(keep)
	p.fresh = p.fresh[:0]
	d := &using.decoder
	if keep == 0 {
		d.Reset(bytes.NewBuffer(p.text))
		return p, 0, p.read(d, 0, false)
	}
	// Read on behind the last shared item, as if it were {}.
	from := p.end(keep)
	rest := append(append(append(using.rest[:0], `{"`...), s.array...), `":[{}`...)
	shift := from - len(rest)
	rest = append(rest, p.text[from:]...)
	using.rest = rest
	d.Reset(bytes.NewBuffer(rest))
	return p, keep, p.read(d, shift, true)
}

// keep remembers a body that was decoded whole.
func (s *splitter) keep(p *parts) {
	s.branches = append(s.branches, p)
	s.trim()
}

// trim forgets the oldest bodies beyond maxBranches.
func (s *splitter) trim() {
	for len(s.branches) > maxBranches {
		s.memory.recycle(s.branches[0].text)
		s.branches = slices.Delete(s.branches, 0, 1)
	}
}

// request completes what was read of a body, which is a good one, by d, which
// keeps so many bytes beside the bodies.
func (s *splitter) request(p *parts, d forgetter, beside int, r Request) Request {
	s.keep(p)
	r.Kept = int64(beside + cap(s.rest.values))
	for _, b := range s.branches {
		r.Kept += int64(cap(b.text))
	}
	r.from, r.fresh, r.print = d, slices.Clone(p.fresh), p.print
	return r
}

// forgetter drops what it remembers of a conversation.
type forgetter interface{ forget() }

// drop forgets the bodies: the next one is read from its beginning. The caller
// has the lock.
func (s *splitter) drop() {
	for _, b := range s.branches {
		s.memory.recycle(b.text)
	}
	s.branches, s.rest = nil, rest{}
}

// within counts the items that end in the first so many bytes.
func (p *parts) within(bytes int) int {
	items := len(p.items)
	for items > 0 && p.items[items-1].to > bytes {
		items--
	}
	return items
}

// end is where the first so many items end.
func (p *parts) end(items int) int {
	if items == 0 {
		return 0
	}
	return p.items[items-1].to
}

// takePrint goes on from what is known of the items that are shared with an
// earlier body, which are likely to be shared with the next one, too.
func (p *parts) takePrint(keep int, seed maphash.Seed) {
	if p.summed == 0 {
		p.sum.SetSeed(seed)
	}
	end := p.end(keep)
	_, _ = p.sum.Write(p.text[p.summed:end]) // never fails
	p.summed = end
	whole := p.sum
	_, _ = whole.Write(p.text[end:])
	p.print = whole.Sum64()
}

// cut leaves the members in front of the array, and its first items.
func (p *parts) cut(keep int) {
	p.names, p.values, p.items = p.names[:p.before], p.values[:p.before], p.items[:keep]
	if p.summed > p.end(keep) {
		p.summed = 0
	}
}

// fork is a copy of what cut would leave.
func (p *parts) fork(keep int) *parts {
	f := &parts{array: p.array, before: p.before}
	f.names, f.values = slices.Clone(p.names[:p.before]), slices.Clone(p.values[:p.before])
	f.items, f.groups, f.said, f.first = slices.Clone(p.items[:keep]), slices.Clone(p.groups), slices.Clip(p.said), p.first
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

// skim reads what follows the shared items, if all of that is plain JSON, as it
// nearly always is. What it took is for cut to undo.
// With a hasher the items are hashed on the way.
func (p *parts) skim(keep int, hasher *schema.Hasher) bool {
	r := schema.ReadPlain(p.text, p.end(keep))
	if keep > 0 {
		if !p.skimItems(&r, false, hasher) {
			return false
		}
		p.names, p.values = append(p.names, p.array), append(p.values, span{})
	} else if !r.Next('{') {
		return false
	}
	for !r.Next('}') {
		if len(p.names) > 0 && !r.Next(',') {
			return false
		}
		name, ok := r.Name()
		if !ok || slices.ContainsFunc(p.names, func(n string) bool { return n == string(name) }) {
			return false
		}
		if string(name) == p.array && r.Next('[') {
			p.before = len(p.names)
			if !p.skimItems(&r, true, hasher) {
				return false
			}
			p.names, p.values = append(p.names, p.array), append(p.values, span{})
			continue
		}
		from, ok := r.Value()
		if !ok {
			return false
		}
		p.names, p.values = append(p.names, string(name)), append(p.values, span{from, r.Offset()})
	}
	return r.End()
}

// skimItems reads to the end of the array. begins: it stands behind the
// bracket, not behind an item.
func (p *parts) skimItems(r *schema.PlainReader, begins bool, hasher *schema.Hasher) bool {
	for ; !r.Next(']'); begins = false {
		if !begins && !r.Next(',') {
			return false
		}
		var from int
		var ok bool
		if hasher != nil {
			var h schema.Hash
			from, h, ok = hasher.Next(r)
			p.fresh = append(p.fresh, h)
		} else {
			from, ok = r.Value()
		}
		if !ok || p.text[from] != '{' {
			return false
		}
		p.items = append(p.items, span{from, r.Offset()})
	}
	return true
}

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
		var at span
		if name == p.array && d.PeekKind() == '[' {
			p.before = len(p.names)
			err = p.readItems(d, shift, resumed)
		} else {
			var v jsontext.Value
			v, err = d.ReadValue()
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
			p.items = append(p.items, span{end - len(v), end})
		}
	}
	_, err := d.ReadToken()
	return err
}

// value is a part of the body, for as long as the splitter is locked.
func (p *parts) value(at span) jsontext.Value {
	return jsontext.Value(p.text[at.from:at.to:at.to])
}

// item is an element of the conversation.
func (p *parts) item(i int) jsontext.Value { return p.value(p.items[i]) }

// member is a member of the request by name; nil when it is not there.
func (p *parts) member(name string) jsontext.Value {
	for i, n := range p.names {
		if n == name {
			return p.value(p.values[i])
		}
	}
	return nil
}

// eachMember calls f for every member but the conversation.
func (p *parts) eachMember(f func(name string, value jsontext.Value) error) error {
	for i, name := range p.names {
		if name == p.array && p.values[i] == (span{}) {
			continue
		}
		if err := f(name, p.value(p.values[i])); err != nil {
			return err
		}
	}
	return nil
}

// memo keeps what a member that seldom changes was converted to: the tools and
// the system prompt are most of what an agent sends again.
type memo[T any] struct {
	raw   []byte
	value T
}

// convert calls f unless raw is byte for byte what it was the last time. What f
// makes must not alias raw.
func (m *memo[T]) convert(raw jsontext.Value, f func(jsontext.Value) (T, error)) (T, error) {
	if m.raw != nil && bytes.Equal(m.raw, raw) {
		return m.value, nil
	}
	value, err := f(raw)
	if err == nil {
		m.raw, m.value = append(m.raw[:0], raw...), value
	}
	return value, err
}

// rest is the members of a body beside its conversation and its tools. They
// seldom change.
type rest struct {
	noted  bool
	names  []string
	values []byte // one behind the other
}

// same reports whether a body has, byte for byte, those that were noted last.
func (r *rest) same(p *parts) bool {
	names, values := r.names, r.values
	for i, name := range p.names {
		if !p.isRest(i) {
			continue
		}
		if len(names) == 0 || names[0] != name {
			return false
		}
		v := p.value(p.values[i])
		if len(values) <= len(v) || !bytes.Equal(values[:len(v)], v) || values[len(v)] != ',' {
			return false
		}
		names, values = names[1:], values[len(v)+1:]
	}
	return r.noted && len(names) == 0
}

func (r *rest) note(p *parts) {
	r.noted, r.names, r.values = true, r.names[:0], r.values[:0]
	for i, name := range p.names {
		if p.isRest(i) {
			r.names = append(r.names, name)
			r.values = append(append(r.values, p.value(p.values[i])...), ',')
		}
	}
}

func (p *parts) isRest(i int) bool {
	return p.names[i] != "tools" && (p.names[i] != p.array || p.values[i] != (span{}))
}

// ownParams copies parameters out of a body.
func ownParams(params schema.SortedMap[json.RawMessage]) {
	size := 0
	for _, v := range params {
		size += len(v)
	}
	room := make([]byte, 0, size)
	for name, v := range params {
		at := len(room)
		room = append(room, v...)
		params[name] = room[at:len(room):len(room)]
	}
}

// member converts the tools of a body; none are the zero value.
func (m *memo[T]) member(p *parts, f func(jsontext.Value) (T, error)) (value T, err error) {
	raw := p.member("tools")
	if raw == nil || raw.Kind() == 'n' {
		return value, nil
	}
	if value, err = m.convert(raw, f); err != nil {
		err = fmt.Errorf("tools: %w", err)
	}
	return value, err
}

// own copies a value out of a body.
func own(v jsontext.Value) json.RawMessage { return json.RawMessage(bytes.Clone(v)) }
