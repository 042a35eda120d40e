package gate

import (
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
func (d *responsesDecoder) Decode(_ *http.Request, body []byte) (Request, error) {
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
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			return errors.New("want a string or an array")
		}
		q.input = newObject().str("role", "user").str("content", s).done()
	case "model":
		q.call.Model, err = unquote(value)
	case "stream":
		q.call.Stream = value.Kind() == 't'
	case "stream_options":
	case "instructions":
		var s string
		if err := json.Unmarshal(value, &s); err != nil {
			return err
		}
		q.instructions = newObject().str("role", "system").str("content", s).done()
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

// item is one element of a response's input.
type item struct {
	Type, Role       string
	CallID, Name     string
	Namespace        string
	Content, Output  jsontext.Value
	Arguments, Input jsontext.Value // JSON strings
	Encrypted        string
	Summary          jsontext.Value
}

func (i *item) read(raw jsontext.Value) error {
	i.Arguments, i.Input = jsontext.Value(`""`), jsontext.Value(`""`)
	return eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			i.Type, err = unquote(v)
		case "role":
			i.Role, err = unquote(v)
		case "content":
			i.Content = v
		case "call_id":
			i.CallID, err = unquote(v)
		case "name":
			i.Name, err = unquote(v)
		case "namespace":
			i.Namespace, err = unquote(v)
		case "arguments":
			i.Arguments, err = literal(v)
		case "input":
			i.Input, err = literal(v)
		case "output":
			i.Output = v
		case "encrypted_content":
			i.Encrypted, err = unquote(v)
		case "summary":
			i.Summary = v
		}
		return err
	})
}

// byModel reports whether the model made it: such items in a row are one
// message of it.
func (i *item) byModel() bool {
	switch i.Type {
	case "function_call", "custom_tool_call", "reasoning":
		return true
	case "", "message":
		return i.Role == "assistant"
	}
	return false
}

// readItems turns the items from one of them into canonical messages.
func readItems(p *parts, from int) (end int, open bool, messages []stdjson.RawMessage, err error) {
	var turn modelTurn
	for end = from; end < len(p.items); end++ {
		var it item
		if err := it.read(p.item(end)); err != nil {
			return 0, false, nil, fmt.Errorf("input.%d: %w", end, err)
		}
		if it.byModel() {
			// What follows calls or a text in the same turn is a turn of its own.
			if turn.ended(&it) {
				break
			}
			if err := turn.add(&it); err != nil {
				return 0, false, nil, fmt.Errorf("input.%d: %w", end, err)
			}
			continue
		}
		if end > from {
			break
		}
		one, err := it.message()
		if err != nil {
			err = fmt.Errorf("input.%d: %w", end, err)
		}
		return end + 1, false, []stdjson.RawMessage{one}, err
	}
	return end, true, []stdjson.RawMessage{turn.message()}, nil
}

// modelTurn puts together what one answer was: reasoning, a text, tool calls.
type modelTurn struct {
	said           content
	reasoning      strings.Builder
	details, calls []jsontext.Value
}

// ended reports whether an item cannot belong to this turn any more.
func (t *modelTurn) ended(it *item) bool {
	switch it.Type {
	case "reasoning":
		return len(t.calls) > 0 || len(t.said.parts) > 0
	case "function_call", "custom_tool_call":
		return false
	default:
		return len(t.calls) > 0
	}
}

func (t *modelTurn) add(it *item) error {
	switch it.Type {
	case "reasoning":
		text, err := texts(it.Content)
		if err == nil && text == "" {
			text, err = texts(it.Summary)
		}
		if err != nil {
			return err
		}
		t.reasoning.WriteString(text)
		if it.Encrypted != "" {
			t.details = append(t.details, newObject().str("type", "reasoning.encrypted").str("data", it.Encrypted).done())
		}
	case "function_call":
		name := it.Name
		if it.Namespace != "" {
			name = inNamespace(it.Namespace, it.Name)
		}
		t.calls = append(t.calls, call(it.CallID, name, it.Arguments))
	case "custom_tool_call":
		c := newObject().str("name", it.Name).raw("input", it.Input)
		t.calls = append(t.calls, newObject().str("id", it.CallID).str("type", "custom").raw("custom", c.done()).done())
	default:
		return readInputParts(it.Content, &t.said)
	}
	return nil
}

func (t *modelTurn) message() []byte {
	return assistant(&t.said, t.reasoning.String(), t.details, t.calls)
}

// message turns an item that the model did not make into a canonical message.
func (i *item) message() ([]byte, error) {
	var c content
	switch i.Type {
	case "", "message":
		role := i.Role
		switch role {
		case "developer": // the newer name of system, which open models know
			role = "system"
		case "user", "system":
		default:
			return nil, fmt.Errorf("role %q is not known: want user, assistant, system or developer", role)
		}
		err := readInputParts(i.Content, &c)
		return message(role, &c), err
	case "function_call_output", "custom_tool_call_output":
		err := readInputParts(i.Output, &c)
		return newObject().str("role", "tool").str("tool_call_id", i.CallID).raw("content", c.value()).done(), err
	case "item_reference":
		return nil, errors.New("item references are not supported: send the item")
	default:
		return nil, fmt.Errorf("an item of type %q is not supported", i.Type)
	}
}

// readInputParts reads a content; a string is one text.
func readInputParts(raw jsontext.Value, c *content) error {
	if raw.Kind() == '"' {
		return c.text(raw, nil)
	}
	return schema.EachElement(raw, func(v jsontext.Value) error {
		p := inputPart{text: jsontext.Value(`""`), refusal: jsontext.Value(`""`)}
		if err := p.read(v); err != nil {
			return err
		}
		switch p.kind {
		case "input_text", "output_text", "text":
			return c.text(p.text, p.extra)
		case "refusal":
			return c.text(p.refusal, nil)
		case "input_image":
			if p.imageURL == "" {
				c.file("", "", p.fileID, "")
			} else {
				c.image(p.imageURL, p.detail)
			}
		case "input_file":
			c.file(p.filename, cmp.Or(p.fileData, p.fileURL), p.fileID, "")
		default:
			return fmt.Errorf("a content part of type %q is not supported", p.kind)
		}
		return nil
	})
}

// inputPart is one part of a content.
type inputPart struct {
	kind, imageURL, detail              string
	fileID, fileData, fileURL, filename string
	text, refusal                       jsontext.Value // JSON strings
	extra                               jsontext.Value // an object of the other members; nil: none
}

func (p *inputPart) read(raw jsontext.Value) error {
	var extra *object
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			p.kind, err = unquote(v)
		case "text":
			p.text, err = literal(v)
		case "refusal":
			p.refusal, err = literal(v)
		case "image_url":
			p.imageURL, err = unquote(v)
		case "detail":
			p.detail, err = unquote(v)
		case "file_id":
			p.fileID, err = unquote(v)
		case "file_data":
			p.fileData, err = unquote(v)
		case "file_url":
			p.fileURL, err = unquote(v)
		case "filename":
			p.filename, err = unquote(v)
		default:
			if extra == nil {
				extra = newObject()
			}
			extra.raw(name, v)
		}
		return err
	})
	if extra != nil {
		p.extra = extra.done()
	}
	return err
}

// texts joins the texts of a list of parts; a string is one.
func texts(raw jsontext.Value) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	if raw.Kind() != '[' {
		return unquote(raw)
	}
	var all strings.Builder
	err := schema.EachElement(raw, func(v jsontext.Value) error {
		return eachField(v, func(name string, v jsontext.Value) error {
			if name != "text" {
				return nil
			}
			s, err := unquote(v)
			all.WriteString(s)
			return err
		})
	})
	return all.String(), err
}
