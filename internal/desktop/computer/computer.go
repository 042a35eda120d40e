// Package computer is an MCP server (https://modelcontextprotocol.io) with one tool, which
// shows the desktop of a machine to a model and carries out its clicks and keys.
package computer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/turngate/turngate/internal/desktop"
	"github.com/turngate/turngate/internal/rawjson"
)

// Desktop carries out orders.
type Desktop interface {
	Do(context.Context, desktop.Order) (desktop.Answer, []byte, error)
}

// arguments of the tool.
type arguments struct {
	Action    string   `json:"action"`
	X         *int     `json:"x"`
	Y         *int     `json:"y"`
	ToX       *int     `json:"to_x"`
	ToY       *int     `json:"to_y"`
	Button    string   `json:"button"`
	Count     int      `json:"count"`
	Text      string   `json:"text"`
	Keys      []string `json:"keys"`
	Direction string   `json:"direction"`
	Steps     int      `json:"steps"`
}

// Tool is the name of the tool.
const Tool = "computer"

// Server returns the server. maxSide is the longer side of the model's screenshots; the model's
// clicks name points of them.
func Server(d Desktop, maxSide int, version string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "turngate-computer", Version: version}, nil)
	var one sync.Mutex // the library carries out calls at once
	server.AddTool(&mcp.Tool{Name: Tool, InputSchema: input(), Description: "Look at the desktop of a computer and use its pointer and keyboard. " +
		"x and y are pixels of the last screenshot, from its upper left corner. Take a screenshot to see the effect of an action. " +
		"Actions must not be called in parallel: call one, and wait for its end."},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			one.Lock()
			defer one.Unlock()
			content, err := act(ctx, d, r.Params.Arguments, maxSide)
			if err != nil { // for the model, which can react to it
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}, IsError: true}, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{content}}, nil
		})
	return server
}

// input is the JSON schema of the arguments.
func input() map[string]any {
	number := func(least, most int, about string) map[string]any {
		return map[string]any{"type": "integer", "minimum": least, "maximum": most, "description": about}
	}
	return map[string]any{
		"type": "object", "required": []string{"action"}, "additionalProperties": false,
		"properties": map[string]any{
			"action":    map[string]any{"type": "string", "enum": []string{desktop.Screenshot, desktop.Move, desktop.Click, desktop.Drag, desktop.Type, desktop.Key, desktop.Scroll}},
			"x":         number(0, desktop.MaxSide, "of move, click, drag and scroll"),
			"y":         number(0, desktop.MaxSide, "of move, click, drag and scroll"),
			"to_x":      number(0, desktop.MaxSide, "end of drag"),
			"to_y":      number(0, desktop.MaxSide, "end of drag"),
			"button":    map[string]any{"type": "string", "enum": desktop.Buttons(), "description": "of click and drag; default left"},
			"count":     number(1, desktop.MaxCount, "clicks one after another; default 1"),
			"text":      map[string]any{"type": "string", "maxLength": desktop.MaxText, "description": "of type; a newline is the key Return"},
			"keys":      map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "maxItems": desktop.MaxKeys, "description": "of key: keys that are pressed at once, such as ctrl+c, alt+F4 or Return, one item after another"},
			"direction": map[string]any{"type": "string", "enum": desktop.Directions(), "description": "of scroll"},
			"steps":     number(1, desktop.MaxSteps, "of scroll; default 3"),
		},
	}
}

// act carries out an action.
func act(ctx context.Context, d Desktop, text json.RawMessage, maxSide int) (mcp.Content, error) {
	var a arguments
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(&a); err != nil {
		return nil, fmt.Errorf("the arguments cannot be read: %w", rawjson.Plain(err))
	}
	o := desktop.Order{Op: a.Action, MaxSide: maxSide, Button: a.Button, Count: a.Count, Text: a.Text, Keys: a.Keys, Direction: a.Direction, Steps: a.Steps}
	var points map[string]*int
	switch a.Action {
	case desktop.Move, desktop.Click, desktop.Scroll:
		points = map[string]*int{"x": a.X, "y": a.Y}
	case desktop.Drag:
		points = map[string]*int{"x": a.X, "y": a.Y, "to_x": a.ToX, "to_y": a.ToY}
	}
	for field, value := range points {
		if value == nil {
			return nil, &desktop.InvalidError{Field: field, Want: "a number of pixels"}
		}
	}
	for to, value := range map[*int]*int{&o.X: a.X, &o.Y: a.Y, &o.ToX: a.ToX, &o.ToY: a.ToY} {
		if value != nil {
			*to = *value
		}
	}
	_, picture, err := d.Do(ctx, o)
	if err != nil {
		return nil, err
	}
	if a.Action == desktop.Screenshot {
		return &mcp.ImageContent{Data: picture, MIMEType: "image/png"}, nil
	}
	return &mcp.TextContent{Text: "done"}, nil
}
