package gate

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// responsesDecoder turns requests of the Responses API into canonical calls.
type responsesDecoder struct {
	splitter
	tools   memo[responsesTools]
	earlier earlier
	named   responsesRequest // what the rest of the newest body says
}

// responsesTools are canonical tools, and the names that they have outside.
type responsesTools struct {
	list  stdjson.RawMessage
	names toolNames
}

// Close gives back what is kept of earlier answers.
func (d *responsesDecoder) Close() {
	d.forget()
	d.earlier.close()
}

func (d *responsesDecoder) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop()
	d.tools, d.named = memo[responsesTools]{}, responsesRequest{}
}

// Decode implements Decoder.
func (d *responsesDecoder) Decode(_ *http.Request, body Body) (Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, keep, err := d.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a responses request: %w", err)
	}
	if err := p.fold(keep, func(i int) (int, bool, []stdjson.RawMessage, error) { return readItems(p, i) }); err != nil {
		return Request{}, err
	}
	q, err := d.members(p)
	if err != nil {
		return Request{}, err
	}
	var first []stdjson.RawMessage
	if q.instructions != nil {
		first = append(first, q.instructions)
	}
	if q.previous != "" {
		history, err := d.earlier.find(q.previous)
		if err != nil {
			return Request{}, fmt.Errorf("previous_response_id: %w", err)
		}
		first = append(first, history...)
	}
	before := 0
	if q.instructions != nil {
		before = 1 // instructions are this request's alone
	}
	tools, err := d.tools.member(p, readResponsesTools)
	if err != nil {
		return Request{}, err
	}
	q.call.Tools = tools.list
	q.call.Messages = p.messages(first...)
	if q.input != nil {
		q.call.Messages = append(q.call.Messages, q.input)
	}
	if len(q.call.Messages) == before {
		return Request{}, errors.New("input: want at least one item")
	}
	return d.request(p, d, cap(d.tools.raw), Request{Call: q.call, Encoding: &responsesEncoding{names: tools.names, earlier: &d.earlier, history: q.call.Messages[before:]}}), nil
}

// members reads what a request says beside its conversation and its tools.
func (d *responsesDecoder) members(p *parts) (responsesRequest, error) {
	if d.rest.same(p) {
		return d.named, nil
	}
	q := responsesRequest{array: p.array, call: schema.Call{Params: schema.SortedMap[stdjson.RawMessage]{}}}
	if err := p.eachMember(q.member); err != nil {
		return q, err
	}
	ownParams(q.call.Params)
	d.rest.note(p)
	d.named = q
	return q, nil
}

// responsesRequest is what a request says beside its conversation.
type responsesRequest struct {
	array        string
	call         schema.Call
	instructions stdjson.RawMessage
	input        stdjson.RawMessage // of an input that is a string
	previous     string
}

func (q *responsesRequest) member(name string, value jsontext.Value) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	params := q.call.Params
	if value.Kind() == 'n' {
		return nil
	}
	switch name {
	case q.array:
		if value.Kind() != '"' {
			return errors.New("want a string or an array")
		}
		q.input = message("user", textOnly(value))
	case "model":
		q.call.Model, err = unquote(value)
	case "stream":
		q.call.Stream = value.Kind() == 't'
	case "stream_options":
	case "instructions":
		if _, err := literal(value); err != nil {
			return err
		}
		q.instructions = message("system", textOnly(value))
	case "previous_response_id":
		q.previous, err = unquote(value)
	case "conversation":
		return errors.New("conversations are kept by OpenAI's servers only: send the whole input")
	case "background":
		if value.Kind() == 't' {
			return errors.New("background answers are not supported")
		}
	case "tools":
	case "tool_choice":
		params["tool_choice"], err = responsesChoice(value)
		return err
	case "max_output_tokens":
		params["max_completion_tokens"] = stdjson.RawMessage(value)
	case "text":
		return responsesText(value, params)
	case "reasoning":
		return moveMember(value, "effort", "reasoning_effort", name, params)
	default:
		params[name] = stdjson.RawMessage(value)
	}
	return err
}

// moveMember takes one member of an object out to a parameter of its own; what
// is left stays under the object's name.
func moveMember(value jsontext.Value, member, to, name string, params map[string]stdjson.RawMessage) error {
	rest := newObject()
	err := schema.EachMember(value, func(key string, v jsontext.Value) error {
		if key != member {
			rest.raw(key, v)
		} else if v.Kind() != 'n' {
			params[to] = stdjson.RawMessage(v)
		}
		return nil
	})
	if len(rest.b) > 1 {
		params[name] = rest.done()
	}
	return err
}

// responsesText moves what is said about the form of the answer to where chat
// has it.
func responsesText(value jsontext.Value, params map[string]stdjson.RawMessage) error {
	return schema.EachMember(value, func(key string, v jsontext.Value) error {
		if key != "format" {
			params[key] = stdjson.RawMessage(v) // verbosity
			return nil
		}
		var f struct {
			Type   string         `json:"type"`
			Fields jsontext.Value `json:",embed"`
		}
		if err := json.Unmarshal(v, &f); err != nil {
			return err
		}
		switch f.Type {
		case "text":
		case "json_object":
			params["response_format"] = stdjson.RawMessage(`{"type":"json_object"}`)
		case "json_schema":
			params["response_format"] = newObject().str("type", f.Type).raw(f.Type, f.Fields).done()
		default:
			return fmt.Errorf("format of type %q is not supported", f.Type)
		}
		return nil
	})
}

func responsesChoice(value jsontext.Value) (stdjson.RawMessage, error) {
	if value.Kind() == '"' {
		return stdjson.RawMessage(value), nil
	}
	var c struct{ Type, Name string }
	if err := json.Unmarshal(value, &c, json.MatchCaseInsensitiveNames(true)); err != nil {
		return nil, err
	}
	switch c.Type {
	case "function":
		return chooseFunction(c.Name), nil
	case "custom":
		return newObject().str("type", "custom").raw("custom", newObject().str("name", c.Name).done()).done(), nil
	default:
		return nil, fmt.Errorf("type %q is not supported", c.Type)
	}
}

// toolNames finds the namespace of a tool, which canonical calls have not, by
// the name that it has there.
type toolNames map[string]namespaced

type namespaced struct{ namespace, name string }

// readResponsesTools turns tool definitions into canonical ones. Tools in a
// namespace get its name in front of theirs.
func readResponsesTools(raw jsontext.Value) (responsesTools, error) {
	n := toolNames{}
	var tools []jsontext.Value
	var add func(space string) func(jsontext.Value) error
	add = func(space string) func(jsontext.Value) error {
		return func(v jsontext.Value) error {
			var t struct {
				Type        string         `json:"type"`
				Name        string         `json:"name"`
				Description jsontext.Value `json:"description"`
				Parameters  jsontext.Value `json:"parameters"`
				Strict      jsontext.Value `json:"strict"`
				Format      jsontext.Value `json:"format"`
				Tools       jsontext.Value `json:"tools"`
			}
			if err := json.Unmarshal(v, &t); err != nil {
				return err
			}
			name := t.Name
			if space != "" {
				name = inNamespace(space, t.Name)
				n[name] = namespaced{space, t.Name}
			}
			switch t.Type {
			case "function":
				tools = append(tools, function(name, t.Description, t.Parameters, t.Strict))
			case "custom":
				c := newObject().str("name", name)
				if len(t.Description) > 0 {
					c.raw("description", t.Description)
				}
				if len(t.Format) > 0 {
					format, err := customFormat(t.Format)
					if err != nil {
						return err
					}
					c.raw("format", format)
				}
				tools = append(tools, newObject().str("type", "custom").raw("custom", c.done()).done())
			case "namespace":
				if space != "" {
					return errors.New("a namespace in a namespace is not supported")
				}
				return schema.EachElement(t.Tools, add(t.Name))
			default:
				return fmt.Errorf("a tool of type %q is run by OpenAI's servers: only tools that the agent runs are supported", t.Type)
			}
			return nil
		}
	}
	err := schema.EachElement(raw, add(""))
	if len(tools) == 0 {
		return responsesTools{names: n}, err
	}
	return responsesTools{list(tools), n}, err
}

func inNamespace(space, name string) string { return space + "__" + name }

// customFormat nests a grammar as chat has it.
func customFormat(raw jsontext.Value) (jsontext.Value, error) {
	var f struct {
		Type string         `json:"type"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(raw, &f); err != nil || f.Type != "grammar" {
		return raw, err
	}
	return newObject().str("type", f.Type).raw(f.Type, f.Rest).done(), nil
}
