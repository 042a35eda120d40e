package trainer

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/schema"
)

// Tool runs one tool call of an agent. The context ends when the result is no
// longer wanted. A call runs once, even if its worker asks several times.
type Tool func(ctx context.Context, c *ToolCall) (string, error)

// ToolCall is a tool call of an agent's model.
type ToolCall struct {
	Key       string // names the call, also when its worker asks another process of this trainer
	Rollout   schema.ID
	Attempt   int
	Name      string
	Arguments json.RawMessage // a JSON object
}

// tools runs the tool calls of agents.
type tools struct {
	*base
	beats *beats
}

// listen subscribes to tool calls, if this trainer has tools.
func (t *tools) listen(onCall func(modelcall.IncomingCall)) (func(), error) {
	if len(t.cfg.Tools) == 0 {
		return func() {}, nil
	}
	return t.server.ListenTools(t.cfg.Shard, onCall)
}

// run runs a new tool call.
func (t *tools) run(s *state, a modelcall.IncomingCall) {
	var c schema.ToolCall
	err := schema.Decode(a.Body, &c)
	if err == nil && c.Key != a.Key.String() {
		err = fmt.Errorf("key: %q does not match the subject's %s", c.Key, a.Key)
	}
	t.beats.open(s, a)
	tool := t.cfg.Tools[c.Name]
	if err == nil && tool == nil {
		err = fmt.Errorf("this trainer has no tool %q", c.Name)
	}
	if err != nil {
		f := schema.Faultf("tool", schema.CodeInvalid, schema.WhoTrainer, "%v", err)
		f.Status = 400
		s.answer(schema.FrameFault, f)
		return
	}
	t.bg.Go(func() {
		result := schema.ToolResult{V: schema.Version}
		text, err := tool(s.ctx, &ToolCall{Key: c.Key, Rollout: a.Key.Rollout, Attempt: a.Key.Attempt, Name: c.Name, Arguments: c.Arguments})
		if result.Text = text; err != nil {
			result.Text, result.IsError = err.Error(), true
		}
		result.Text = schema.Clip(result.Text, schema.MaxToolText)
		s.answer(schema.FrameFinal, &result)
	})
}
