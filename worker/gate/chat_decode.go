package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// chatDecoder splits chat requests, whose messages are canonical as they are.
type chatDecoder struct {
	splitter
	list  []json.RawMessage // of one body, used again
	named schema.Call       // what the rest of the newest body says, and its tools
}

// Close implements Decoder.
func (d *chatDecoder) Close() { d.forget() }

func (d *chatDecoder) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop()
	d.named = schema.Call{}
}

// Decode implements Decoder.
func (d *chatDecoder) Decode(_ *http.Request, body Body) (Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, keep, err := d.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a chat completion request: %w", err)
	}
	fresh := 0
	for _, item := range p.items[keep:] {
		fresh += item.to - item.from
	}
	room := make([]byte, 0, fresh)
	if err := p.fold(keep, func(i int) (int, bool, []json.RawMessage, error) {
		at := len(room)
		room = append(room, p.item(i)...)
		d.list = append(d.list[:0], room[at:len(room):len(room)])
		return i + 1, false, d.list, nil
	}); err != nil {
		return Request{}, err
	}
	call, err := d.call(p)
	if err != nil {
		return Request{}, err
	}
	return d.request(p, d, 0, Request{Call: call, Encoding: chatEncoding{}}), nil
}

// call is a body in canonical form.
func (d *chatDecoder) call(p *parts) (schema.Call, error) {
	if !d.rest.same(p) {
		named, err := readChatMembers(p)
		if err != nil {
			return schema.Call{}, err
		}
		d.rest.note(p)
		named.Tools = d.named.Tools
		d.named = named
	}
	if tools := p.member("tools"); tools.Kind() != '[' {
		d.named.Tools = nil
	} else if !bytes.Equal(tools, d.named.Tools) {
		d.named.Tools = own(tools)
	}
	c := d.named
	if c.Messages = p.messages(); len(c.Messages) == 0 {
		return c, errors.New("messages: want at least one")
	}
	return c, nil
}

// readChatMembers reads all but the messages and the tools.
func readChatMembers(p *parts) (schema.Call, error) {
	c := schema.Call{Params: make(schema.SortedMap[json.RawMessage], len(p.names))}
	err := p.eachMember(func(name string, value jsontext.Value) (err error) {
		switch name {
		case p.array:
			return errors.New("messages is not an array")
		case "tools": // seldom change, and are large
		case "model":
			if c.Model, err = unquote(value); err != nil {
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
		return err
	})
	ownParams(c.Params)
	return c, err
}

// onlyOne refuses a wish for several answers.
func onlyOne(name string, value jsontext.Value) error {
	if s := string(value); s != "1" && s != "null" {
		return fmt.Errorf("%s is %s: only one answer a call is supported", name, s)
	}
	return nil
}
