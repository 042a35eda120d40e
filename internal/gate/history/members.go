package history

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/schema"
)

// otherMembers has the members of a body other than its conversation and its tools.
// They seldom change.
type otherMembers struct {
	noted  bool
	names  []string
	values []byte // the values, each followed by a comma
}

// same reports whether a body has the noted members, byte for byte.
func (r *otherMembers) same(p *parts) bool {
	names, values := r.names, r.values
	for i, name := range p.names {
		if !p.isOther(i) {
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

func (r *otherMembers) note(p *parts) {
	r.noted, r.names, r.values = true, r.names[:0], r.values[:0]
	for i, name := range p.names {
		if p.isOther(i) {
			r.names = append(r.names, name)
			r.values = append(append(r.values, p.value(p.values[i])...), ',')
		}
	}
}

func (p *parts) isOther(i int) bool {
	return p.names[i] != "tools" && (p.names[i] != p.array || p.values[i] != (span{}))
}

// ownParams replaces parameters by copies that do not alias a body.
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

// tools keeps the converted tools, which seldom change: most of the repeated
// bytes of an agent are its tools and its system prompt.
type tools struct {
	raw   []byte // the tools as they were sent; nil if they are canonical
	value dialect.Tools
}

// convert returns the tools of a body. It calls f, unless they are byte for byte
// the same as the last time. If f is nil, the tools are canonical.
func (t *tools) convert(p *parts, f func(jsontext.Value) (dialect.Tools, error)) (dialect.Tools, error) {
	raw := p.Member("tools")
	switch {
	case f == nil && raw.Kind() != '[':
		t.value.List = nil
	case f == nil:
		if !bytes.Equal(raw, t.value.List) {
			t.value.List = json.RawMessage(bytes.Clone(raw))
		}
	case raw == nil || raw.Kind() == 'n':
		return dialect.Tools{}, nil
	case t.raw == nil || !bytes.Equal(t.raw, raw):
		value, err := f(raw)
		if err != nil {
			return value, fmt.Errorf("tools: %w", err)
		}
		t.raw, t.value = append(t.raw[:0], raw...), value
	}
	return t.value, nil
}
