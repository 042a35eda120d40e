package canonical

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// Answer is an assistant message in the form of OpenAI chat, or a piece of a
// streamed one.
type Answer struct {
	Content, Reasoning Text
	ToolCalls          []ToolCall
}

// ReadAnswer reads a whole message or a delta. Its texts are slices of raw.
func ReadAnswer(raw []byte) (Answer, error) {
	var s Answer
	var refusal, reasoning Text // names that some engines use
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "content":
			s.Content, err = ReadText(v)
		case "refusal":
			refusal, err = ReadText(v)
		case "reasoning_content":
			s.Reasoning, err = ReadText(v)
		case "reasoning":
			reasoning, err = ReadText(v)
		case "tool_calls":
			err = rawjson.EachElement(v, func(v jsontext.Value) error {
				c := ToolCall{Index: len(s.ToolCalls)}
				err := c.read(v)
				s.ToolCalls = append(s.ToolCalls, c)
				return err
			})
		}
		return err
	})
	if err != nil {
		return s, fmt.Errorf("not an assistant message: %w", err)
	}
	if s.Reasoning.Empty() {
		s.Reasoning = reasoning
	}
	if s.Content.Empty() {
		s.Content = refusal
	}
	return s, nil
}

// Text is a JSON string; nil is an empty one.
type Text jsontext.Value

// Empty reports whether the text has no characters.
func (t Text) Empty() bool { return len(t) <= len(`""`) }

// Inner returns the text without quotes.
func (t Text) Inner() []byte {
	if t.Empty() {
		return nil
	}
	return t[1 : len(t)-1]
}

// ReadText reads a string, null, or a list of text parts.
func ReadText(v jsontext.Value) (Text, error) {
	if v.Kind() != '[' {
		s, err := rawjson.Literal(v)
		return Text(s), err
	}
	all := Text{'"'}
	err := rawjson.EachElement(v, func(v jsontext.Value) error {
		kind := ""
		err := rawjson.EachField(v, func(name string, v jsontext.Value) (err error) {
			switch name {
			case "type":
				kind, err = rawjson.Unquote(v)
			case "text", "refusal":
				v, err = rawjson.Literal(v)
				all = append(all, Text(v).Inner()...)
			}
			return err
		})
		if err == nil && kind != "text" && kind != "refusal" {
			err = fmt.Errorf("a content part of type %.80q cannot be an answer", kind)
		}
		return err
	})
	return append(all, '"'), err
}

// ToolCall is a tool call of the model; a piece of a call sets only new fields.
type ToolCall struct {
	Index    int
	ID, Kind string
	Function struct{ Name, Arguments string }
	Tool     struct{ Name, Input string } // a tool with free text as input

	typed bool // Kind was given
}

func (c *ToolCall) read(raw jsontext.Value) error {
	err := rawjson.EachField(raw, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "index":
			if v.Kind() == 'n' {
				return nil
			}
			if c.Index, err = strconv.Atoi(string(v)); err == nil && c.Index < 0 {
				err = errors.New("a tool call has a negative index")
			}
		case "id":
			c.ID, err = rawjson.Unquote(v)
		case "type":
			c.Kind, err = rawjson.Unquote(v)
			c.typed = c.Kind != ""
		case "function":
			c.Function.Name, c.Function.Arguments, err = readNamed(v, "arguments")
		case "custom":
			c.Tool.Name, c.Tool.Input, err = readNamed(v, "input")
		}
		return err
	})
	if c.Kind == "" && c.Function.Name == "" && c.Tool.Name != "" {
		c.Kind = "custom"
	}
	return err
}

// readNamed reads an object with a name and one more string, the member what.
func readNamed(raw jsontext.Value, what string) (name, value string, err error) {
	if raw.Kind() == 'n' {
		return "", "", nil
	}
	err = rawjson.EachField(raw, func(member string, v jsontext.Value) (err error) {
		switch member {
		case "name":
			name, err = rawjson.Unquote(v)
		case what:
			value, err = rawjson.Unquote(v)
		}
		return err
	})
	return name, value, err
}

// Custom reports whether the tool has free text as input.
func (c *ToolCall) Custom() bool { return c.Kind == "custom" }

// Name returns the tool's name.
func (c *ToolCall) Name() string {
	if c.Custom() {
		return c.Tool.Name
	}
	return c.Function.Name
}

// Input returns the tool's input: JSON for a function, otherwise free text.
func (c *ToolCall) Input() string {
	if c.Tool.Input != "" {
		return c.Tool.Input
	}
	return c.Function.Arguments
}

// ToolCalls are the tool calls of a streamed answer, joined from its pieces, in the order
// of their indices.
type ToolCalls []ToolCall

// Add adds the tool calls of a piece.
func (h *ToolCalls) Add(more []ToolCall) {
next:
	for i := range more {
		piece := &more[i]
		for n := range *h {
			c := &(*h)[n]
			if c.Index != piece.Index {
				continue
			}
			if c.ID == "" {
				c.ID = piece.ID
			}
			if c.Kind == "" {
				c.Kind = piece.Kind
			}
			if piece.Name() != c.Name() { // otherwise it is repeated
				c.Function.Name += piece.Function.Name
				c.Tool.Name += piece.Tool.Name
			}
			c.Function.Arguments += piece.Function.Arguments
			c.Tool.Input += piece.Tool.Input
			continue next
		}
		at := len(*h)
		for at > 0 && (*h)[at-1].Index > piece.Index {
			at--
		}
		*h = slices.Insert(*h, at, *piece)
	}
}
