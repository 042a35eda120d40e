package playback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/turngate/turngate/schema"
)

// recordedTool is a call of one of the trainer's tools.
type recordedTool struct {
	number    int // 1, 2, ... in the order of the transcript
	name      string
	arguments json.RawMessage
	hash      schema.Hash // of the arguments
	result    string
	failed    bool // the result is an error
}

func (r *Recording) addTool(l *schema.TranscriptLine) {
	t := &recordedTool{number: len(r.tools) + 1, name: l.Tool, arguments: slices.Clone(l.Arguments), result: l.Text, failed: l.IsError}
	t.hash = r.hasher.Message(t.arguments)
	if l.Fault != nil {
		t.result, t.failed = l.Fault.Message, true
	}
	r.tools = append(r.tools, t)
}

// Tools returns the names of the trainer's tools that the recorded agent called.
func (r *Recording) Tools() []string {
	var out []string
	for _, t := range r.tools {
		if !slices.Contains(out, t.name) {
			out = append(out, t.name)
		}
	}
	return out
}

// Tool gives the recorded result of a call of a trainer's tool. Equal calls get
// their results in the recorded order. Another call is a divergence, and gets the
// next result of the same tool, so that the agent goes on. The error is a result,
// too: the agent reads its text.
func (r *Recording) Tool(_ context.Context, id schema.ID, attempt int, name string, arguments json.RawMessage) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.runOf(id, attempt)
	now.tools++
	found := r.chooseTool(now, name, arguments)
	switch {
	case found == nil:
		return "", fmt.Errorf("the recording has no call of the tool %s left", name)
	case found.failed:
		return "", errors.New(found.result)
	default:
		return found.result, nil
	}
}

func (r *Recording) chooseTool(now *run, name string, arguments json.RawMessage) *recordedTool {
	hash := r.hasher.Message(arguments)
	var next *recordedTool
	for _, t := range r.tools {
		if now.usedTools[t] || t.name != name {
			continue
		}
		if t.hash == hash {
			now.usedTools[t] = true
			return t
		}
		if next == nil {
			next = t
		}
	}
	d := &Divergence{Tool: name, Call: now.tools}
	var then json.RawMessage
	if next != nil {
		now.usedTools[next] = true
		d.Recorded, then = next.number, next.arguments
	}
	d.Diff = diff(then, arguments)
	now.diverges(d)
	return next
}

// missingTools returns the numbers of the recorded tool calls that a run did not make.
func (r *Recording) missingTools(now *run) []int {
	out := []int{}
	for _, t := range r.tools {
		if !now.usedTools[t] {
			out = append(out, t.number)
		}
	}
	return out
}
