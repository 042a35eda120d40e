package gate

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// said is an assistant message in the form of OpenAI chat, or a piece of one
// that is being streamed.
type said struct {
	content, reasoning text
	toolCalls          []toolCall
}

// readSaid reads a whole message or a delta. Its texts are slices of raw.
func readSaid(raw []byte) (said, error) {
	var s said
	var refusal, reasoning text // what some engines call it
	err := eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "content":
			s.content, err = readText(v)
		case "refusal":
			refusal, err = readText(v)
		case "reasoning_content":
			s.reasoning, err = readText(v)
		case "reasoning":
			reasoning, err = readText(v)
		case "tool_calls":
			err = schema.EachElement(v, func(v jsontext.Value) error {
				c := toolCall{index: len(s.toolCalls)}
				err := c.read(v)
				s.toolCalls = append(s.toolCalls, c)
				return err
			})
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("not an assistant message: %w", err)
	}
	if s.reasoning.empty() {
		s.reasoning = reasoning
	}
	if s.content.empty() {
		s.content = refusal
	}
	return s, nil
}

// text is a JSON string; nil is an empty one.
type text jsontext.Value

func (t text) empty() bool { return len(t) <= len(`""`) }

// inner is what stands between the quotes.
func (t text) inner() []byte {
	if t.empty() {
		return nil
	}
	return t[1 : len(t)-1]
}

// readText reads a string, null, or a list of text parts.
func readText(v jsontext.Value) (text, error) {
	if v.Kind() != '[' {
		s, err := literal(v)
		return text(s), err
	}
	all := text{'"'}
	err := schema.EachElement(v, func(v jsontext.Value) error {
		kind := ""
		err := eachField(v, func(name string, v jsontext.Value) (err error) {
			switch name {
			case "type":
				kind, err = unquote(v)
			case "text", "refusal":
				v, err = literal(v)
				all = append(all, text(v).inner()...)
			}
			return err
		})
		if err == nil && kind != "text" && kind != "refusal" {
			err = fmt.Errorf("a content part of type %q cannot be an answer", kind)
		}
		return err
	})
	return append(all, '"'), err
}

// toolCall is one wish of the model; of a piece, only what is new is set.
type toolCall struct {
	index    int
	id, kind string
	function struct{ name, arguments string }
	tool     struct{ name, input string } // one whose input is free text
}

func (c *toolCall) read(raw jsontext.Value) error {
	return eachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "index":
			if v.Kind() == 'n' {
				return nil
			}
			if c.index, err = strconv.Atoi(string(v)); err == nil && c.index < 0 {
				err = errors.New("a tool call has a negative index")
			}
		case "id":
			c.id, err = unquote(v)
		case "type":
			c.kind, err = unquote(v)
		case "function":
			c.function.name, c.function.arguments, err = readNamed(v, "arguments")
		case "custom":
			c.tool.name, c.tool.input, err = readNamed(v, "input")
		}
		return err
	})
}

// readNamed reads an object that has a name, and one more string.
func readNamed(raw jsontext.Value, what string) (name, value string, err error) {
	if raw.Kind() == 'n' {
		return "", "", nil
	}
	err = eachField(raw, func(member string, v jsontext.Value) (err error) {
		switch member {
		case "name":
			name, err = unquote(v)
		case what:
			value, err = unquote(v)
		}
		return err
	})
	return name, value, err
}

func (c *toolCall) custom() bool { return c.kind == "custom" }

func (c *toolCall) name() string {
	if c.custom() {
		return c.tool.name
	}
	return c.function.name
}

// input is what the tool is given: JSON for a function, free text otherwise.
func (c *toolCall) input() string {
	if c.tool.input != "" {
		return c.tool.input
	}
	return c.function.arguments
}
