package canonical

import (
	"bytes"
	"errors"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// Arguments remembers the arguments of a session's tool calls in the model's own
// text. Some dialects have objects as arguments: the agent parses them and
// writes them again, and the gate wraps arguments that are no object. If the
// arguments that come back mean the same as the delivered ones, the
// conversation keeps the model's text.
type Arguments struct {
	mu    sync.Mutex
	calls map[string]string // by id
	order []string          // oldest first
	bytes int
}

// maxArguments bounds the memory of the ids and arguments, in bytes.
const maxArguments = 4 << 20

// Note remembers the arguments of an answer's calls.
func (a *Arguments) Note(calls []ToolCall) {
	if len(calls) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[string]string{}
	}
	for i := range calls {
		id, arguments := calls[i].ID, calls[i].Input()
		if old, there := a.calls[id]; there { // some engines reuse ids in each answer
			a.bytes += len(arguments) - len(old)
		} else {
			a.order = append(a.order, id)
			a.bytes += len(arguments) + 2*len(id) + perArguments
		}
		a.calls[id] = arguments
	}
	for a.bytes > maxArguments && len(a.order) > 0 {
		id := a.order[0]
		a.order = a.order[1:]
		a.bytes -= len(a.calls[id]) + 2*len(id) + perArguments
		delete(a.calls, id)
	}
}

// perArguments is the memory of a call in addition to its text, in bytes.
const perArguments = 128

// Of returns the arguments of a call that the agent sent back: the
// model's text if they mean the same, otherwise input without needless white
// space.
func (a *Arguments) Of(id string, input jsontext.Value) (string, error) {
	compact, err := CompactObject(input)
	if err != nil {
		return "", err
	}
	a.mu.Lock()
	own, there := a.calls[id]
	a.mu.Unlock()
	if there && own != compact && rawjson.Same(ObjectOr(own), jsontext.Value(compact)) {
		return own, nil
	}
	return compact, nil
}

// ObjectOr returns the arguments of a function as an object. Empty arguments
// are an empty object. Other values are wrapped, so that the agent refuses the
// call and can tell the model the mistake.
func ObjectOr(arguments string) jsontext.Value {
	v := jsontext.Value(arguments)
	if v.Kind() == '{' {
		if !rawjson.IsJSON(v) {
			v, _ = rawjson.Mend(v)
		}
		if v.IsValid() {
			if bytes.ContainsAny(v, "\r\n") {
				v = v.Clone()
				_ = v.Compact() // valid, so it cannot fail
			}
			return v
		}
	}
	if strings.TrimSpace(arguments) == "" {
		return jsontext.Value("{}")
	}
	b := append([]byte(nil), `{"invalid_arguments":`...)
	return append(rawjson.AppendString(b, arguments), '}')
}

// CompactObject returns a JSON object without needless white space, which is
// the form of tool arguments in canonical messages; an empty value is {}.
func CompactObject(v jsontext.Value) (string, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return "{}", nil
	}
	if v.Kind() != '{' {
		return "", errors.New("the input of a tool call is not an object")
	}
	if !bytes.ContainsAny(v, " \t\r\n") {
		return string(v), nil
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return "", err
	}
	return string(c), nil
}
