package gemini

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

// decoder converts the requests of one session.
type decoder struct {
	ids callIDs // of the request that is converted
}

// method splits the variable part of a path, MODEL:METHOD.
func method(r *http.Request) (model, method string) {
	model, method, _ = strings.Cut(r.PathValue("call"), ":")
	return model, method
}

// begin checks the method. Counts of tokens need no conversion.
func (d *decoder) begin(r *http.Request, p dialect.Parts) (*dialect.Request, error) {
	d.ids = callIDs{}
	switch _, method := method(r); method {
	case "", "generateContent", "streamGenerateContent":
		return nil, nil
	case "countTokens":
		items := p.Len()
		if whole := p.Member("generateContentRequest"); whole != nil {
			var err error
			if items, err = countContents(whole); err != nil {
				return nil, err
			}
		}
		if items == 0 {
			return nil, errors.New("contents: want at least one")
		}
		return &dialect.Request{Count: func(n int64) []byte { return fmt.Appendf(nil, `{"totalTokens":%d}`, n) }}, nil
	default:
		return nil, fmt.Errorf("method %.80q is not served: want generateContent, streamGenerateContent or countTokens", method)
	}
}

// countContents returns the number of contents of a request.
func countContents(request jsontext.Value) (n int, err error) {
	err = rawjson.EachMember(request, func(name string, v jsontext.Value) error {
		if name != "contents" || v.Kind() != '[' {
			return nil
		}
		return rawjson.EachElement(v, func(v jsontext.Value) error {
			if n++; v.Kind() != '{' {
				return errors.New("every one of contents must be an object")
			}
			return nil
		})
	})
	return n, err
}

func (d *decoder) messages(p dialect.Parts, i int) (dialect.Group, error) {
	messages, err := readContent(p, i, &d.ids)
	if err != nil {
		err = fmt.Errorf("contents.%d: %w", i, err)
	}
	return dialect.Group{Messages: messages}, err
}

// request completes a call by its path, which has the model and the method.
func (d *decoder) request(r *http.Request, c dialect.Converted) dialect.Request {
	model, method := method(r)
	d.ids = callIDs{}
	c.Call.Model, c.Call.Stream = model, method == "streamGenerateContent"
	return dialect.Request{Call: c.Call, Encoding: encoding{r.URL.Query().Get("alt") == "sse"}}
}

// readMember reads a member other than the conversation and the tools.
func readMember(m *dialect.Members, name string, value jsontext.Value) (err error) {
	switch name {
	case "contents":
		err = errors.New("want an array")
	case "systemInstruction", "system_instruction":
		m.First, err = readSystem(value)
	case "toolConfig", "tool_config":
		err = readChoice(value, m.Params)
	case "generationConfig", "generation_config":
		err = readConfig(value, m.Params)
	case "model":
	default:
		m.Params[name] = stdjson.RawMessage(value)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// readSystem converts an instruction, which is a content or a text, to a
// message; it returns none if the instruction is empty.
func readSystem(raw jsontext.Value) ([]stdjson.RawMessage, error) {
	var system canonical.Content
	if raw.Kind() == '"' {
		return []stdjson.RawMessage{canonical.Message("system", canonical.TextOnly(raw))}, nil
	}
	var m content
	if err := m.read(raw); err != nil {
		return nil, err
	}
	for n := range m.parts {
		if err := m.parts[n].add(&system); err != nil {
			return nil, err
		}
	}
	if system.Empty() {
		return nil, nil
	}
	return []stdjson.RawMessage{canonical.Message("system", &system)}, nil
}

func readTools(raw jsontext.Value) (dialect.Tools, error) {
	var tools []jsontext.Value
	err := rawjson.EachElement(raw, func(v jsontext.Value) error {
		return rawjson.EachMember(v, func(name string, value jsontext.Value) error {
			if name != "functionDeclarations" && name != "function_declarations" {
				return fmt.Errorf("%.80q is run by Google's servers: only functions that the agent runs are supported", name)
			}
			return rawjson.EachElement(value, func(f jsontext.Value) error {
				var t struct {
					Name        string         `json:"name"`
					Description jsontext.Value `json:"description"`
					Parameters  jsontext.Value `json:"parameters"`
					Schema      jsontext.Value `json:"parametersJsonSchema"`
					Response    jsontext.Value `json:"response"`
					Other       jsontext.Value `json:",embed"`
				}
				if err := json.Unmarshal(f, &t); err != nil {
					return rawjson.Plain(err)
				}
				if len(t.Schema) == 0 && len(t.Parameters) > 0 {
					var err error
					if t.Schema, err = jsonSchema(t.Parameters); err != nil {
						return err
					}
				}
				more := rawjson.NewObject()
				if len(t.Response) > 0 {
					response, err := jsonSchema(t.Response)
					if err != nil {
						return err
					}
					more.Raw("response", response)
				}
				if err := more.Extra(t.Other); err != nil {
					return err
				}
				tools = append(tools, canonical.Function(t.Name, t.Description, t.Schema, nil, more))
				return nil
			})
		})
	})
	if len(tools) == 0 {
		return dialect.Tools{}, err
	}
	return dialect.Tools{List: rawjson.List(tools)}, err
}

func readChoice(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	var c struct {
		Config struct {
			Mode    string   `json:"mode"`
			Allowed []string `json:"allowedFunctionNames"`
		} `json:"functionCallingConfig"`
		Other jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return rawjson.Plain(err)
	}
	switch mode := c.Config.Mode; {
	case mode == "ANY" && len(c.Config.Allowed) == 1:
		params["tool_choice"] = canonical.ChooseFunction(c.Config.Allowed[0])
	case len(c.Config.Allowed) > 0:
		return errors.New("allowedFunctionNames with more than one name is not supported: send only the functions that are allowed")
	case mode == "ANY":
		params["tool_choice"] = rawjson.Quote("required")
	case mode == "NONE":
		params["tool_choice"] = rawjson.Quote("none")
	case mode == "AUTO", mode == "VALIDATED":
		params["tool_choice"] = rawjson.Quote("auto")
	}
	if len(c.Other) > 0 {
		params["toolConfig"] = stdjson.RawMessage(c.Other)
	}
	return nil
}

// readConfig renames the parameters that chat has, and keeps the others.
func readConfig(raw jsontext.Value, params map[string]stdjson.RawMessage) error {
	names := map[string]string{
		"temperature": "temperature", "topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens", "stopSequences": "stop",
		"presencePenalty": "presence_penalty", "frequencyPenalty": "frequency_penalty", "seed": "seed", "responseLogprobs": "logprobs", "logprobs": "top_logprobs",
	}
	return rawjson.EachMember(raw, func(name string, value jsontext.Value) error {
		switch name {
		case "candidateCount":
			return canonical.OnlyOne(name, value)
		case "responseMimeType":
			switch string(value) {
			case `"text/plain"`:
			case `"application/json"`:
				if params["response_format"] == nil {
					params["response_format"] = stdjson.RawMessage(`{"type":"json_object"}`)
				}
			default:
				return fmt.Errorf("responseMimeType %.80s is not supported: want text/plain or application/json", value)
			}
		case "responseSchema", "responseJsonSchema":
			s, err := jsonSchema(value)
			if err != nil {
				return err
			}
			params["response_format"] = canonical.AnswerSchema(s)
		default:
			if known := names[name]; known != "" {
				name = known
			}
			params[name] = stdjson.RawMessage(value)
		}
		return nil
	})
}
