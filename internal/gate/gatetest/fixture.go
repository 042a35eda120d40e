package gatetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

// Fixture is one dialect under test.
type Fixture struct {
	Dialect dialect.Dialect
	// Path returns the path for a request with this body.
	Path func(body string) string
	// Body returns a request with this user text.
	Body func(text string, stream bool) string
	// Read returns the text and the tool calls ("name arguments") of a whole
	// answer or a stream, as read by the dialect's clients.
	Read func(t *testing.T, body []byte, stream bool) (text string, tools []string)
	// Next returns the request that goes on from a whole answer, with a result for each
	// of its calls. It parses the answer and writes it again, as clients do. Nil: the
	// dialect's conversations have no calls.
	Next func(t *testing.T, request string, answer []byte) string
	// CallID is a pattern of the id of a tool call in an answer.
	CallID string
	// Reasons has a part of an answer for each finish reason.
	Reasons map[string]string
	// KeepAlive is part of a stream's keep-alive.
	KeepAlive string
	Talk      Talk
}

// Talk has the JSON of a conversation in a dialect.
type Talk struct {
	Path string
	Head string // up to the items; %d is a number of a parameter
	Item string // %q is a text
	Tail string // %s are the tools
	Tool string // %q is a name
}

// Body returns a request with a conversation, tools and a parameter.
func (k Talk) Body(texts, tools []string, param int) string {
	var items, defined []string
	for _, text := range texts {
		items = append(items, fmt.Sprintf(k.Item, text))
	}
	for _, name := range tools {
		defined = append(defined, fmt.Sprintf(k.Tool, name))
	}
	return fmt.Sprintf(k.Head, param) + strings.Join(items, ",") + fmt.Sprintf(k.Tail, strings.Join(defined, ","))
}

// Fixtures returns one for each dialect of gate.Dialects, in its order.
func Fixtures() []Fixture {
	return []Fixture{
		Chat(),
		Responses(),
		Anthropic(),
		Gemini(),
	}
}

// Always returns the same path for each body.
func Always(path string) func(string) string { return func(string) string { return path } }

// Posted returns a request in the form that a dialect's decoder gets.
func Posted(path string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	if _, call, ok := strings.Cut(r.URL.Path, "/models/"); ok {
		r.SetPathValue("call", call)
	}
	return r
}

// Decode reads a body with a new reader.
func Decode(d dialect.Dialect, path, body string) (history.Request, error) {
	return DecodeWith(history.NewReader(d, history.NewMemory(0), history.AsSent), Posted(path), []byte(body))
}

// DecodeWith reads and decodes a body.
func DecodeWith(d *history.Reader, r *http.Request, body []byte) (history.Request, error) {
	read, err := d.Read(bytes.NewReader(body), len(body))
	if err != nil {
		return history.Request{}, err
	}
	return d.Decode(r, read)
}

// Shown returns a call in the form of golden files.
func Shown(c schema.Call) string {
	b, err := json.MarshalIndent(map[string]any{"model": c.Model, "stream": c.Stream, "messages": c.Messages, "tools": c.Tools, "params": c.Params}, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Event is an event of a stream.
type Event struct{ Kind, Data string }

// Events splits an event stream.
func Events(s string) (all []Event) {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	for _, e := range strings.Split(strings.TrimSuffix(s, "\n\n"), "\n\n") {
		var one Event
		for _, line := range strings.Split(e, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				one.Kind = v
			} else if v, ok := strings.CutPrefix(line, "data: "); ok {
				one.Data += v
			} else {
				one.Data += "\x00not an event: " + line
			}
		}
		all = append(all, one)
	}
	return all
}

// JSON returns a value of maps, lists and strings as JSON.
func JSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings always encode
	}
	return string(b)
}

type object = map[string]any

// parsed reads JSON into maps, lists and strings.
func parsed(t *testing.T, data []byte) object {
	t.Helper()
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return o
}

// rewritten parses arguments and writes them again, if they are JSON.
func rewritten(arguments any) any {
	text, _ := arguments.(string)
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return arguments
	}
	return JSON(v)
}

// list returns a value as a list of objects; a value of another type has none.
func list(v any) (all []object) {
	values, _ := v.([]any)
	for _, v := range values {
		if o, ok := v.(object); ok {
			all = append(all, o)
		}
	}
	return all
}

// with returns a request with further items of its conversation.
func with(request object, conversation string, items ...any) string {
	before, _ := request[conversation].([]any)
	request[conversation] = append(before, items...)
	return JSON(request)
}
