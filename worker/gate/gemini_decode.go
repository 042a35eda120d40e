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
	tools  memo[stdjson.RawMessage]
	params schema.SortedMap[stdjson.RawMessage] // what the rest of the newest body says, and
	system []stdjson.RawMessage                 // its system prompt as a message, or none
}

// Close implements Decoder.
func (d *geminiDecoder) Close() { d.forget() }

func (d *geminiDecoder) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop()
	d.tools, d.params, d.system = memo[stdjson.RawMessage]{}, nil, nil
}

// Decode implements Decoder. Model and method stand in the path.
func (d *geminiDecoder) Decode(r *http.Request, body Body) (Request, error) {
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
	if !d.rest.same(p) {
		if err := d.members(p); err != nil {
			return Request{}, err
		}
		d.rest.note(p)
	}
	if len(p.items) == 0 {
		return Request{}, errors.New("contents: want at least one")
	}
	c := schema.Call{Model: model, Params: d.params, Stream: method == "streamGenerateContent", Messages: p.messages(d.system...)}
	if c.Tools, err = d.tools.member(p, geminiTools); err != nil {
		return Request{}, err
	}
	return d.request(p, d, cap(d.tools.raw), Request{Call: c, Encoding: geminiEncoding{events: streamed}}), nil
}

// members reads what a request says beside its conversation and its tools.
func (d *geminiDecoder) members(p *parts) error {
	params := schema.SortedMap[stdjson.RawMessage]{}
	var system stdjson.RawMessage
	err := p.eachMember(func(name string, value jsontext.Value) (err error) {
		switch name {
		case p.array:
			err = errors.New("want an array")
		case "systemInstruction", "system_instruction":
			system, err = geminiSystem(value)
		case "tools":
		case "toolConfig", "tool_config":
			err = geminiChoice(value, params)
		case "generationConfig", "generation_config":
			err = geminiConfig(value, params)
		case "model":
		default:
			params[name] = stdjson.RawMessage(value)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	ownParams(params)
	d.params, d.system = params, nil
	if len(system) > 0 {
		d.system = []stdjson.RawMessage{system}
	}
	return nil
}

// geminiSystem turns an instruction, a content or a text, into a message; nil
// if it is empty.
func geminiSystem(raw jsontext.Value) (stdjson.RawMessage, error) {
	var system content
	if raw.Kind() == '"' {
		return message("system", textOnly(raw)), nil
	}
	var m geminiContent
	if err := m.read(raw); err != nil {
		return nil, err
	}
	for n := range m.parts {
		if err := m.parts[n].add(&system); err != nil {
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
