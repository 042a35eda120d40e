package responses

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

func request(_ *http.Request, c dialect.Converted) dialect.Request {
	names, _ := c.Names.(toolNames) // nil without tools
	return dialect.Request{Call: c.Call, Encoding: &encoding{names: names, answers: c.Answers, history: c.Conversation}}
}

// readMember reads a member other than the list of items and the tools.
func readMember(m *dialect.Members, name string, value jsontext.Value) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
	}()
	if value.Kind() == 'n' {
		return nil
	}
	switch name {
	case "input":
		if value.Kind() != '"' {
			return errors.New("want a string or an array")
		}
		m.Last = canonical.Message("user", canonical.TextOnly(value))
	case "model":
		m.Model, err = rawjson.Unquote(value)
	case "stream":
		m.Stream = value.Kind() == 't'
	case "stream_options":
	case "instructions":
		if _, err := rawjson.Literal(value); err != nil {
			return err
		}
		m.First = []stdjson.RawMessage{canonical.Message("system", canonical.TextOnly(value))}
	case "previous_response_id":
		m.Previous, err = rawjson.Unquote(value)
	case "conversation":
		return errors.New("conversations are kept by OpenAI's servers only: send the whole input")
	case "background":
		if value.Kind() == 't' {
			return errors.New("background answers are not supported")
		}
	case "tool_choice":
		m.Params["tool_choice"], err = readChoice(value)
		return err
	case "max_output_tokens":
		m.Params["max_completion_tokens"] = stdjson.RawMessage(value)
	case "text":
		return readText(value, m.Params)
	case "reasoning":
		return moveMember(value, "effort", "reasoning_effort", name, m.Params)
	default:
		m.Params[name] = stdjson.RawMessage(value)
	}
	return err
}

// moveMember moves one member of an object to its own parameter. The rest of
// the object stays under its name.
func moveMember(value jsontext.Value, member, to, name string, params map[string]stdjson.RawMessage) error {
	rest := rawjson.NewObject()
	err := rawjson.EachMember(value, func(key string, v jsontext.Value) error {
		if key != member {
			rest.Raw(key, v)
		} else if v.Kind() != 'n' {
			params[to] = stdjson.RawMessage(v)
		}
		return nil
	})
	if !rest.Empty() {
		params[name] = rest.Done()
	}
	return err
}

// readText moves the format of the answer to chat's parameter.
func readText(value jsontext.Value, params map[string]stdjson.RawMessage) error {
	return rawjson.EachMember(value, func(key string, v jsontext.Value) error {
		if key != "format" {
			params[key] = stdjson.RawMessage(v) // verbosity
			return nil
		}
		var f struct {
			Type   string         `json:"type"`
			Fields jsontext.Value `json:",embed"`
		}
		if err := json.Unmarshal(v, &f); err != nil {
			return rawjson.Plain(err)
		}
		switch f.Type {
		case "text":
		case "json_object":
			params["response_format"] = stdjson.RawMessage(`{"type":"json_object"}`)
		case "json_schema":
			params["response_format"] = rawjson.NewObject().Str("type", f.Type).Raw(f.Type, f.Fields).Done()
		default:
			return fmt.Errorf("format of type %.80q is not supported", f.Type)
		}
		return nil
	})
}

func readChoice(value jsontext.Value) (stdjson.RawMessage, error) {
	if value.Kind() == '"' {
		return stdjson.RawMessage(value), nil
	}
	var c struct{ Type, Name string }
	if err := json.Unmarshal(value, &c, json.MatchCaseInsensitiveNames(true)); err != nil {
		return nil, rawjson.Plain(err)
	}
	switch c.Type {
	case "function":
		return canonical.ChooseFunction(c.Name), nil
	case "custom":
		return rawjson.NewObject().Str("type", "custom").Raw("custom", rawjson.NewObject().Str("name", c.Name).Done()).Done(), nil
	default:
		return nil, fmt.Errorf("type %.80q is not supported", c.Type)
	}
}

// toolNames maps the canonical name of a tool to its namespace and name,
// because canonical calls have no namespaces.
type toolNames map[string]namespaced

type namespaced struct{ namespace, name string }

// readTools converts tool definitions to canonical ones. A tool in a
// namespace gets the namespace as a prefix.
func readTools(raw jsontext.Value) (dialect.Tools, error) {
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
				return rawjson.Plain(err)
			}
			name := t.Name
			if space != "" {
				name = inNamespace(space, t.Name)
				n[name] = namespaced{space, t.Name}
			}
			switch t.Type {
			case "function":
				tools = append(tools, canonical.Function(name, t.Description, t.Parameters, t.Strict, nil))
			case "custom":
				c := rawjson.NewObject().Str("name", name)
				if len(t.Description) > 0 {
					c.Raw("description", t.Description)
				}
				if len(t.Format) > 0 {
					format, err := customFormat(t.Format)
					if err != nil {
						return err
					}
					c.Raw("format", format)
				}
				tools = append(tools, rawjson.NewObject().Str("type", "custom").Raw("custom", c.Done()).Done())
			case "namespace":
				if space != "" {
					return errors.New("a namespace in a namespace is not supported")
				}
				return rawjson.EachElement(t.Tools, add(t.Name))
			default:
				return fmt.Errorf("a tool of type %.80q is run by OpenAI's servers: only tools that the agent runs are supported", t.Type)
			}
			return nil
		}
	}
	err := rawjson.EachElement(raw, add(""))
	if len(tools) == 0 {
		return dialect.Tools{Names: n}, err
	}
	return dialect.Tools{List: rawjson.List(tools), Names: n}, err
}

func inNamespace(space, name string) string { return space + "__" + name }

// customFormat nests a grammar in the form of chat.
func customFormat(raw jsontext.Value) (jsontext.Value, error) {
	var f struct {
		Type string         `json:"type"`
		Rest jsontext.Value `json:",embed"`
	}
	if err := json.Unmarshal(raw, &f); err != nil || f.Type != "grammar" {
		return raw, rawjson.Plain(err)
	}
	return rawjson.NewObject().Str("type", f.Type).Raw(f.Type, f.Rest).Done(), nil
}
