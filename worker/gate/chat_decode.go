package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// chatDecoder splits chat requests, whose messages are canonical as they are.
type chatDecoder struct{ splitter }

// Decode implements Decoder.
func (d *chatDecoder) Decode(_ *http.Request, body []byte) (Request, error) {
	p, _, _, err := d.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a chat completion request: %w", err)
	}
	call, err := chatCall(p)
	if err != nil {
		return Request{}, err
	}
	d.keep(p)
	return Request{Call: call, Forget: func() { d.forget(p) }, Encoding: chatEncoding{}}, nil
}

// chatCall is a body in canonical form.
func chatCall(p *parts) (schema.Call, error) {
	c := schema.Call{Params: make(schema.SortedMap[json.RawMessage], len(p.names)), Messages: make([]json.RawMessage, len(p.items))}
	for i := range p.items {
		c.Messages[i] = json.RawMessage(p.item(i))
	}
	err := p.eachMember(func(name string, value jsontext.Value) error {
		switch name {
		case p.array:
			return errors.New("messages is not an array")
		case "tools":
			if value.Kind() == '[' {
				c.Tools = json.RawMessage(value)
			}
		case "model":
			if err := json.Unmarshal(value, &c.Model); err != nil {
				return fmt.Errorf("model: %w", err)
			}
		case "stream":
			c.Stream = value.Kind() == 't'
		case "stream_options": // how the agent wants its stream is the gate's business
		case "n":
			return onlyOne(name, value)
		default:
			c.Params[name] = json.RawMessage(value)
		}
		return nil
	})
	if err == nil && len(c.Messages) == 0 {
		err = errors.New("messages: want at least one")
	}
	return c, err
}

// onlyOne refuses a wish for several answers.
func onlyOne(name string, value jsontext.Value) error {
	if s := string(value); s != "1" && s != "null" {
		return fmt.Errorf("%s is %s: only one answer a call is supported", name, s)
	}
	return nil
}
