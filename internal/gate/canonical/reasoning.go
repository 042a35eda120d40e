package canonical

import (
	"bytes"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// reasoning is the reasoning of a message: its members under the names that engines use.
type reasoning []member

type member struct {
	name  string
	value jsontext.Value
}

// add adds a member of a message, if it belongs to the reasoning and is not empty.
func (r *reasoning) add(name string, v jsontext.Value) {
	if isReasoning(name) && len(v) > len(`""`) && string(v) != "null" {
		*r = append(*r, member{name, v})
	}
}

func isReasoning(name string) bool {
	return name == "reasoning_content" || name == "reasoning" || name == "reasoning_details"
}

// text returns the text of the reasoning without white space around it; empty: it has
// none, or none that can be read.
func (r reasoning) text() string {
	for _, m := range r {
		if m.value.Kind() == '"' {
			text, _ := rawjson.Unquote(m.value)
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// equal reports whether two messages have the same reasoning under the same names.
func (r reasoning) equal(other reasoning) bool {
	return slices.EqualFunc(r, other, func(a, b member) bool { return a.name == b.name && bytes.Equal(a.value, b.value) })
}

func (r reasoning) size() int {
	n := 0
	for _, m := range r {
		n += len(m.name) + len(m.value) + perCall
	}
	return n
}

// reasonings remembers the reasoning of answers, by the numbers of their model calls.
// Beyond maxReasoning it forgets the oldest.
type reasonings struct {
	known map[int]reasoning
	order []int // numbers of known, oldest first
	bytes int
}

// maxReasoning bounds the memory, in bytes: it is more than the context of a model.
const maxReasoning = 4 << 20

// note remembers the reasoning of a model call, in place of that of an earlier
// generation of the call.
func (k *reasonings) note(call int, r reasoning) {
	if old, there := k.known[call]; there {
		k.bytes -= old.size()
		delete(k.known, call)
		k.order = slices.DeleteFunc(k.order, func(n int) bool { return n == call })
	}
	if len(r) == 0 {
		return
	}
	own := make(reasoning, len(r))
	for i, m := range r {
		own[i] = member{m.name, m.value.Clone()}
	}
	if k.known == nil {
		k.known = map[int]reasoning{}
	}
	k.known[call], k.order, k.bytes = own, append(k.order, call), k.bytes+own.size()
	for k.bytes > maxReasoning {
		oldest := k.order[0]
		k.order, k.bytes = k.order[1:], k.bytes-k.known[oldest].size()
		delete(k.known, oldest)
	}
}

// own returns the model's reasoning for a message of the agent that has calls of the
// model call: if the agent dropped it, or has the same text in another form. Nil: the
// message stays as it is.
func (k *reasonings) own(call int, agents reasoning) reasoning {
	model := k.known[call]
	if text := agents.text(); model.equal(agents) || text != "" && text != model.text() {
		return nil
	}
	return model
}
