package schema

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ToolSpec is a tool that the trainer runs for an agent.
type ToolSpec struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // a JSON schema of type object
}

// reservedTools are the names of control functions in common interfaces of
// environments; an agent must not be able to call them.
func reservedTools() []string { return []string{"reset", "step", "state", "close"} }

// ToolServer is the name of the MCP server that offers a trainer's tools to the
// agent.
const ToolServer = "trainer"

func (t *ToolSpec) validate(field string) error {
	if err := CheckToken(field+".name", t.Name); err != nil {
		return err
	}
	if slices.Contains(reservedTools(), t.Name) {
		return invalid(field+".name", t.Name, "another name: this one steers environments")
	}
	if err := checkText(field+".description", t.Description, maxText); err != nil {
		return err
	}
	var object map[string]json.RawMessage
	if len(t.Parameters) > maxText || len(t.Parameters) > 0 && (json.Unmarshal(t.Parameters, &object) != nil || string(object["type"]) != `"object"`) {
		return invalid(field+".parameters", Clip(string(t.Parameters), 100), fmt.Sprintf("a JSON schema of type object, of at most %d bytes", maxText))
	}
	return nil
}

// ToolCall asks the trainer to run one of its tools. Its key has the form of a
// model call's key, but tool calls have numbers of their own.
type ToolCall struct {
	V         int             `json:"v"`
	Key       string          `json:"key"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object, as the model wrote it
}

// check checks all fields. Of the arguments it checks only that they are
// JSON.
func (c *ToolCall) check() error {
	if _, err := ParseKey(c.Key); err != nil {
		return err
	}
	if err := CheckToken("name", c.Name); err != nil {
		return err
	}
	if !json.Valid(c.Arguments) {
		return invalid("arguments", Clip(string(c.Arguments), 100), "a JSON object")
	}
	return nil
}

// ToolResult is the result of a tool call.
type ToolResult struct {
	V       int    `json:"v"`
	Text    string `json:"text"`
	IsError bool   `json:"is_error,omitempty"` // the text describes an error to the model
}

// MaxToolText is the longest text of a tool's result in bytes.
const MaxToolText = 1 << 20

func (r *ToolResult) check() error { return checkText("text", r.Text, MaxToolText) }
