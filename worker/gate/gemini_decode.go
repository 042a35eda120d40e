package gate

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// geminiDecoder turns requests of the Gemini API into canonical calls.
type geminiDecoder struct {
	splitter
	system, tools memo[stdjson.RawMessage]
}

// Decode implements Decoder. Model and method stand in the path.
func (d *geminiDecoder) Decode(r *http.Request, body []byte) (Request, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, keep, err := d.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a generateContent request: %w", err)
	}
	model, method, streamed := "", "", false
	if r != nil {
		model, method, _ = strings.Cut(r.PathValue("call"), ":")
		streamed = r.URL.Query().Get("alt") == "sse"
	}
	switch method {
	case "", "generateContent", "streamGenerateContent":
	case "countTokens":
		inner := p
		if whole := p.member("generateContentRequest"); whole != nil {
			inner = &parts{array: p.array, text: whole}
			if err := inner.read(jsontext.NewDecoder(strings.NewReader(string(whole))), 0, false); err != nil {
				return Request{}, err
			}
		}
		if len(inner.items) == 0 {
			return Request{}, errors.New("contents: want at least one")
		}
		return Request{Count: func(n int64) []byte { return fmt.Appendf(nil, `{"totalTokens":%d}`, n) }}, nil
	default:
		return Request{}, fmt.Errorf("method %q is not served: want generateContent, streamGenerateContent or countTokens", method)
	}
	if err := p.fold(keep, func(i int) (int, bool, []stdjson.RawMessage, error) {
		messages, err := readGemini(p, i)
		if err != nil {
			err = fmt.Errorf("contents.%d: %w", i, err)
		}
		return i + 1, false, messages, err
	}); err != nil {
		return Request{}, err
	}
	c := schema.Call{Model: model, Params: schema.SortedMap[stdjson.RawMessage]{}, Stream: method == "streamGenerateContent"}
	var first []stdjson.RawMessage
	err = p.eachMember(func(name string, value jsontext.Value) (err error) {
		switch name {
		case p.array:
			err = errors.New("want an array")
		case "systemInstruction", "system_instruction":
			var system stdjson.RawMessage
			if system, err = d.system.convert(value, geminiSystem); len(system) > 0 {
				first = append(first, system)
			}
		case "tools":
			c.Tools, err = d.tools.convert(value, geminiTools)
		case "toolConfig", "tool_config":
			err = geminiChoice(value, c.Params)
		case "generationConfig", "generation_config":
			err = geminiConfig(value, c.Params)
		case "model":
		default:
			c.Params[name] = stdjson.RawMessage(value)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return err
	})
	if err != nil {
		return Request{}, err
	}
	if len(p.items) == 0 {
		return Request{}, errors.New("contents: want at least one")
	}
	c.Messages = p.messages(first...)
	ownParams(c.Params)
	return d.request(p, Request{Call: c, Encoding: geminiEncoding{events: streamed}}), nil
}

// geminiPart is one part of a content.
type geminiPart struct {
	Text       *string        `json:"text"`
	Thought    bool           `json:"thought"`
	Signature  string         `json:"thoughtSignature"`
	InlineData *geminiBlob    `json:"inlineData"`
	Inline     *geminiBlob    `json:"inline_data"`
	FileData   *geminiFile    `json:"fileData"`
	Call       *geminiCall    `json:"functionCall"`
	Response   *geminiCall    `json:"functionResponse"`
	Other      jsontext.Value `json:",embed"`
}

type geminiBlob struct {
	MimeType string `json:"mimeType"`
	Mime     string `json:"mime_type"`
	Data     string `json:"data"`
}

func (b *geminiBlob) add(c *content) {
	mime := b.MimeType + b.Mime
	url := "data:" + mime + ";base64," + b.Data
	if strings.HasPrefix(mime, "image/") {
		c.image(url, "")
	} else {
		c.file("", url, "", "")
	}
}

type geminiFile struct {
	MimeType string `json:"mimeType"`
	URI      string `json:"fileUri"`
}

// geminiCall is a function call or its response.
type geminiCall struct {
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Args     jsontext.Value `json:"args"`
	Response jsontext.Value `json:"response"`
	Parts    jsontext.Value `json:"parts"`
}

type geminiContent struct {
	Role  string       `json:"role"`
	Parts []geminiPart `json:"parts"`
}

// readGemini turns one content into canonical messages.
func readGemini(p *parts, i int) ([]stdjson.RawMessage, error) {
	var m geminiContent
	if err := json.Unmarshal(p.item(i), &m); err != nil {
		return nil, err
	}
	switch m.Role {
	case "model":
		one, err := readGeminiModel(&m, i)
		return []stdjson.RawMessage{one}, err
	case "", "user", "function":
	default:
		return nil, fmt.Errorf("role %q is not known: want user or model", m.Role)
	}
	var out []stdjson.RawMessage
	var run content
	flush := func() {
		if len(run.parts) > 0 {
			out = append(out, message("user", &run))
			run = content{}
		}
	}
	ids := callIDs{p: p, before: i}
	for n := range m.Parts {
		part := &m.Parts[n]
		if part.Response == nil {
			if err := part.add(&run); err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
			continue
		}
		flush()
		result, err := part.Response.result()
		if err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		id, err := ids.of(part.Response)
		if err != nil {
			return nil, fmt.Errorf("parts.%d: %w", n, err)
		}
		out = append(out, newObject().str("role", "tool").str("tool_call_id", id).raw("content", result.value()).done())
	}
	flush()
	if len(out) == 0 {
		out = append(out, message("user", &run))
	}
	return out, nil
}

// result is what a function gave: the text of a response that is nothing but
// {"output": "..."}, as the API recommends, or else the object as JSON.
func (c *geminiCall) result() (*content, error) {
	var out content
	var only struct {
		Output *string        `json:"output"`
		Other  jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(c.Response, &only); err == nil && only.Output != nil && len(only.Other) == 0 {
		if err := out.text(quoted(*only.Output), nil); err != nil {
			return nil, err
		}
	} else if text, err := compactObject(c.Response); err != nil {
		return nil, err
	} else if err := out.text(quoted(text), nil); err != nil {
		return nil, err
	}
	if len(c.Parts) > 0 {
		var parts []geminiPart
		if err := json.Unmarshal(c.Parts, &parts); err != nil {
			return nil, err
		}
		for n := range parts {
			if err := parts[n].add(&out); err != nil {
				return nil, err
			}
		}
	}
	return &out, nil
}

// add appends a part that is neither a call nor a response.
func (p *geminiPart) add(c *content) error {
	switch {
	case p.Text != nil:
		return c.text(quoted(*p.Text), p.Other)
	case p.InlineData != nil:
		p.InlineData.add(c)
	case p.Inline != nil:
		p.Inline.add(c)
	case p.FileData != nil && strings.HasPrefix(p.FileData.MimeType, "image/"):
		c.image(p.FileData.URI, "")
	case p.FileData != nil:
		c.file("", p.FileData.URI, "", p.FileData.MimeType)
	case len(p.Other) > 2:
		return fmt.Errorf("a part like %.60s is not supported", p.Other)
	}
	return nil
}

// ownCallID is the id of a function call that came without one: its place.
func ownCallID(content, call int) string { return fmt.Sprintf("call_%d_%d", content, call) }

func readGeminiModel(m *geminiContent, at int) (stdjson.RawMessage, error) {
	var said content
	var reasoning, text strings.Builder // a streamed text comes back in its pieces
	var calls []jsontext.Value
	for n := range m.Parts {
		part := &m.Parts[n]
		plain := part.Text != nil && !part.Thought && len(part.Other) == 0 && part.Call == nil
		if plain {
			text.WriteString(*part.Text)
			continue
		}
		if err := flushText(&text, &said); err != nil {
			return nil, err
		}
		switch {
		case part.Call != nil:
			id := part.Call.ID
			if id == "" {
				id = ownCallID(at, len(calls))
			}
			arguments, err := compactObject(part.Call.Args)
			if err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
			calls = append(calls, call(id, part.Call.Name, quoted(arguments)))
		case part.Thought && part.Text != nil:
			reasoning.WriteString(*part.Text)
		default:
			if err := part.add(&said); err != nil {
				return nil, fmt.Errorf("parts.%d: %w", n, err)
			}
		}
	}
	if err := flushText(&text, &said); err != nil {
		return nil, err
	}
	return assistant(&said, reasoning.String(), nil, calls), nil
}

func flushText(text *strings.Builder, into *content) error {
	if text.Len() == 0 {
		return nil
	}
	defer text.Reset()
	return into.text(quoted(text.String()), nil)
}

// callIDs finds the call that a response without an id belongs to: the first
// of its name, in the content of the model before it, that has no response
// yet.
type callIDs struct {
	p      *parts
	before int
	open   []geminiCall
	read   bool
}

func (c *callIDs) of(r *geminiCall) (string, error) {
	if r.ID != "" {
		return r.ID, nil
	}
	for at := c.before - 1; at >= 0 && !c.read; at-- {
		var m geminiContent
		if err := json.Unmarshal(c.p.item(at), &m); err != nil {
			return "", err
		}
		if c.read = m.Role == "model"; !c.read {
			continue
		}
		for n := range m.Parts {
			if call := m.Parts[n].Call; call != nil {
				if call.ID == "" {
					call.ID = ownCallID(at, len(c.open))
				}
				c.open = append(c.open, *call)
			}
		}
	}
	for i, call := range c.open {
		if call.Name == r.Name {
			c.open = append(c.open[:i:i], c.open[i+1:]...)
			return call.ID, nil
		}
	}
	return "", fmt.Errorf("the response of %q has no call before it", r.Name)
}

// geminiSystem turns an instruction, a content or a text, into a message; nil
// if it is empty.
func geminiSystem(raw jsontext.Value) (stdjson.RawMessage, error) {
	var system content
	if raw.Kind() == '"' {
		if err := system.text(raw, nil); err != nil {
			return nil, err
		}
		return message("system", &system), nil
	}
	var m geminiContent
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	for n := range m.Parts {
		if err := m.Parts[n].add(&system); err != nil {
			return nil, err
		}
	}
	if len(system.parts) == 0 {
		return nil, nil
	}
	return message("system", &system), nil
}

func geminiTools(raw jsontext.Value) (stdjson.RawMessage, error) {
	var tools []jsontext.Value
	err := schema.EachElement(raw, func(v jsontext.Value) error {
		return schema.EachMember(v, func(name string, value jsontext.Value) error {
			if name != "functionDeclarations" && name != "function_declarations" {
				return fmt.Errorf("%q is run by Google's servers: only functions that the agent runs are supported", name)
			}
			return schema.EachElement(value, func(f jsontext.Value) error {
				var t struct {
					Name        string         `json:"name"`
					Description jsontext.Value `json:"description"`
					Parameters  jsontext.Value `json:"parameters"`
					Schema      jsontext.Value `json:"parametersJsonSchema"`
				}
				if err := json.Unmarshal(f, &t); err != nil {
					return err
				}
				if len(t.Schema) == 0 && len(t.Parameters) > 0 {
					var err error
					if t.Schema, err = jsonSchema(t.Parameters); err != nil {
						return err
					}
				}
				tools = append(tools, function(t.Name, t.Description, t.Schema, nil))
				return nil
			})
		})
	})
	if len(tools) == 0 {
		return nil, err
	}
	return list(tools), err
}

// jsonSchema writes the types of a Gemini schema, which are upper case, as
// JSON Schema has them.
func jsonSchema(v jsontext.Value) (jsontext.Value, error) {
	var out strings.Builder
	d, e := jsontext.NewDecoder(strings.NewReader(string(v))), jsontext.NewEncoder(&out, jsontext.EscapeForHTML(false))
	isType := false
	for {
		t, err := d.ReadToken()
		if errors.Is(err, io.EOF) {
			return jsontext.Value(strings.TrimSuffix(out.String(), "\n")), nil
		}
		if err != nil {
			return nil, err
		}
		kind, n := d.StackIndex(d.StackDepth())
		isName := kind == '{' && n%2 == 1 && t.Kind() == '"'
		if isType && t.Kind() == '"' && !isName {
			switch s := t.String(); s {
			case "STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL":
				t = jsontext.String(strings.ToLower(s))
			}
		}
		isType = isName && t.String() == "type"
		if err := e.WriteToken(t); err != nil {
			return nil, err
		}
	}
}

func geminiChoice(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	var c struct {
		Config struct {
			Mode    string   `json:"mode"`
			Allowed []string `json:"allowedFunctionNames"`
		} `json:"functionCallingConfig"`
		Other jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return err
	}
	switch mode := c.Config.Mode; {
	case mode == "ANY" && len(c.Config.Allowed) == 1:
		params["tool_choice"] = chooseFunction(c.Config.Allowed[0])
	case len(c.Config.Allowed) > 0:
		return errors.New("allowedFunctionNames with more than one name is not supported: send only the functions that are allowed")
	case mode == "ANY":
		params["tool_choice"] = quoted("required")
	case mode == "NONE":
		params["tool_choice"] = quoted("none")
	case mode == "AUTO", mode == "VALIDATED":
		params["tool_choice"] = quoted("auto")
	}
	if len(c.Other) > 0 {
		params["toolConfig"] = stdjson.RawMessage(c.Other)
	}
	return nil
}

// geminiConfig brings the parameters that chat has to their names there, and
// leaves the others as they are.
func geminiConfig(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	names := map[string]string{
		"temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens", "stopSequences": "stop",
		"presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty", "seed": "seed", "responseLogprobs": "logprobs", "logprobs": "top_logprobs",
	}
	return schema.EachMember(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "candidateCount":
			return onlyOne(name, value)
		case "responseMimeType":
			switch string(value) {
			case `"text/plain"`:
			case `"application/json"`:
				if params["response_format"] == nil {
					params["response_format"] = stdjson.RawMessage(`{"type":"json_object"}`)
				}
			default:
				return fmt.Errorf("responseMimeType %s is not supported: want text/plain or application/json", value)
			}
		case "responseSchema", "responseJsonSchema":
			s, err := jsonSchema(value)
			if err != nil {
				return err
			}
			params["response_format"] = newObject().str("type", "json_schema").raw("json_schema", newObject().str("name", "answer").raw("schema", s).done()).done()
		default:
			if known := names[name]; known != "" {
				name = known
			}
			params[name] = stdjson.RawMessage(value)
		}
		return nil
	})
}
