package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// chatDecoder splits chat requests. Agents append: a body usually equals the
// one before byte for byte up to the end of the old messages, so only what
// follows is parsed, and a call costs the same however long its conversation
// is.
type chatDecoder struct {
	mu   sync.Mutex
	last *chatBody
}

// chatBody is one request, taken apart. Values are slices of body.
type chatBody struct {
	body     []byte
	names    []string // of the members, in order, up to and with "messages"; then those behind
	values   []jsontext.Value
	before   int      // members in front of "messages"
	messages [][2]int // offsets of each message in body
}

const messagesMember = "messages"

// Decode implements Decoder.
func (d *chatDecoder) Decode(_ *http.Request, body []byte) (schema.Call, error) {
	d.mu.Lock()
	last := d.last
	d.mu.Unlock()
	b, err := splitChat(body, last)
	if err != nil {
		return schema.Call{}, fmt.Errorf("the body is not a chat completion request: %w", err)
	}
	d.mu.Lock()
	d.last = b
	d.mu.Unlock()
	return b.call()
}

// splitChat takes a body apart; what it shares with the last one is not read
// again.
func splitChat(body []byte, last *chatBody) (*chatBody, error) {
	b := &chatBody{body: body}
	if keep := last.shared(body); keep > 0 {
		b.names, b.values = append(b.names, last.names[:last.before]...), make([]jsontext.Value, last.before, len(last.values))
		for i := range b.values { // the same bytes, in this body
			at := offsetIn(last.body, last.values[i])
			b.values[i] = body[at : at+len(last.values[i])]
		}
		b.before = last.before
		b.messages = append(make([][2]int, 0, len(last.messages)+8), last.messages[:keep]...)
		// Read on behind the last shared message, as if it were {}.
		const as = `{"messages":[{}`
		from := b.messages[keep-1][1]
		rest := append(append(make([]byte, 0, len(as)+len(body)-from), as...), body[from:]...)
		return b, b.read(jsontext.NewDecoder(bytes.NewBuffer(rest)), from-len(as), true)
	}
	return b, b.read(jsontext.NewDecoder(bytes.NewBuffer(body)), 0, false)
}

// shared counts the messages that body has in common with an earlier one.
func (b *chatBody) shared(body []byte) int {
	if b == nil {
		return 0
	}
	n := commonPrefix(b.body, body)
	keep := len(b.messages)
	for keep > 0 && b.messages[keep-1][1] > n {
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
// body's. resumed: it stands behind a message that is already known.
func (b *chatBody) read(d *jsontext.Decoder, shift int, resumed bool) error {
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
		if slices.Contains(b.names, name) {
			return fmt.Errorf("%q is there twice", name)
		}
		if name == messagesMember {
			b.before = len(b.names)
			err = b.readMessages(d, shift, resumed)
			b.values = append(b.values, nil)
		} else {
			var v jsontext.Value
			v, err = d.ReadValue()
			end := int(d.InputOffset()) + shift
			if err == nil {
				b.values = append(b.values, b.body[end-len(v):end])
			}
		}
		if err != nil {
			return err
		}
		b.names = append(b.names, name)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(b.body[int(d.InputOffset())+shift:]); len(rest) > 0 {
		return errors.New("something follows the JSON object")
	}
	return nil
}

func (b *chatBody) readMessages(d *jsontext.Decoder, shift int, resumed bool) error {
	if t, err := d.ReadToken(); err != nil {
		return err
	} else if t.Kind() == 'n' {
		return nil
	} else if t.Kind() != '[' {
		return errors.New("messages is not an array")
	}
	for skip := resumed; d.PeekKind() != ']'; skip = false {
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		if v.Kind() != '{' {
			return errors.New("every one of messages must be an object")
		}
		if end := int(d.InputOffset()) + shift; !skip {
			b.messages = append(b.messages, [2]int{end - len(v), end})
		}
	}
	_, err := d.ReadToken()
	return err
}

// call is the body in canonical form.
func (b *chatBody) call() (schema.Call, error) {
	c := schema.Call{Params: make(schema.SortedMap[json.RawMessage], len(b.names))}
	if len(b.messages) == 0 {
		return c, errors.New("messages: want at least one")
	}
	c.Messages = make([]json.RawMessage, len(b.messages))
	for i, at := range b.messages {
		c.Messages[i] = json.RawMessage(b.body[at[0]:at[1]:at[1]])
	}
	for i, name := range b.names {
		value := b.values[i]
		switch name {
		case messagesMember:
		case "tools":
			if value.Kind() == '[' {
				c.Tools = json.RawMessage(value)
			}
		case "model":
			if err := json.Unmarshal(value, &c.Model); err != nil {
				return c, fmt.Errorf("model: %w", err)
			}
		case "stream":
			c.Stream = value.Kind() == 't'
		case "stream_options": // how the agent wants its stream is the gate's business
		case "n":
			if s := string(value); s != "1" && s != "null" {
				return c, fmt.Errorf("n is %s: only one choice a call is supported", s)
			}
		default:
			c.Params[name] = json.RawMessage(value)
		}
	}
	return c, nil
}
