package recorded

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

const shownText = 160 // characters of each message

// Show writes a rollout as a tree for people. t is nil if there is no transcript;
// it has messages if it was read with Options.Messages.
func Show(w io.Writer, r *Rollout, t *trajectory.Rollout) {
	s := shower{w: w, children: map[int][]*trajectory.Call{}, answers: trajectory.Answers{}}
	s.head(r)
	if t == nil {
		s.line("", "no transcript: the agent made no model call, or has not ended")
		return
	}
	rows, positions := 0, 0
	for row := range t.Rows() {
		rows++
		positions += len(row.InputIDs)
	}
	s.line("", "%d calls, %d rows of %d tokens", len(t.Calls), rows, positions)
	s.line("", "%s", t.Tokens)
	for _, c := range t.Calls {
		s.children[c.Parent] = append(s.children[c.Parent], c)
	}
	for _, c := range s.children[0] {
		s.line("", "")
		s.line("", "%s", c.Tag)
		s.chain(c, "")
	}
	if len(t.Findings) > 0 {
		s.line("", "")
		for _, f := range t.Findings {
			s.line("", "%s %s: %s", f.Level, f.Code, f.Text)
		}
	}
}

type shower struct {
	w        io.Writer
	children map[int][]*trajectory.Call // by the number of the parent
	answers  trajectory.Answers         // that were written
}

// line writes a line of untrusted text.
func (s *shower) line(indent, format string, args ...any) {
	fmt.Fprintln(s.w, strings.TrimRight(indent+plain.Line(fmt.Sprintf(format, args...), 2*shownText), " "))
}

func (s *shower) head(r *Rollout) {
	s.line("", "rollout %s", r.Name())
	if q := r.Result; q != nil {
		text := fmt.Sprintf("%s, attempt %d of task %s by %s: %s, reward %s", q.ID, q.Attempt, q.Task, q.Agent, q.Status, RewardText(q.Reward))
		if q.Fault != nil {
			text += ", " + q.Fault.Error()
		}
		s.line("", "%s", text)
	} else if r.State != nil {
		s.line("", "%s, attempt %d: %s", r.ID, r.State.Attempt, r.State.Status)
	}
}

// RewardText formats a reward; an unknown one is null.
func RewardText(r *float64) string {
	if r == nil {
		return "null"
	}
	return strconv.FormatFloat(*r, 'g', -1, 64)
}

// chain writes a call and the calls that continue it. Among the calls that
// continue the same one, the last has the same indentation and the others have
// more.
func (s *shower) chain(c *trajectory.Call, indent string) {
	for c != nil {
		s.call(c, indent)
		next := s.children[c.Number]
		if len(next) == 0 {
			return
		}
		for _, b := range next[:len(next)-1] {
			s.chain(b, indent+"  | ")
		}
		c = next[len(next)-1]
	}
}

func (s *shower) call(c *trajectory.Call, indent string) {
	text := fmt.Sprintf("call %d", c.Number)
	if c.Role != c.Tag || c.Tag != schema.TagAgent {
		text += " " + c.Role
	}
	if c.Merge == trajectory.MergeFork || c.Merge == trajectory.MergeRealign || c.Reason == trajectory.ReasonBranch {
		text += ", " + c.Merge
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
	}
	if c.Prompt+c.Completion > 0 {
		text += fmt.Sprintf(", %d + %d ids", c.Prompt, c.Completion)
	} else if c.Usage.PromptTokens+c.Usage.CompletionTokens > 0 {
		text += fmt.Sprintf(", %d + %d tokens", c.Usage.PromptTokens, c.Usage.CompletionTokens)
	}
	if cost := c.Usage.CostUSD; cost != nil {
		text += ", " + progress.Dollars(cost)
	}
	if c.FinishReason != "" {
		text += ", " + c.FinishReason
	}
	for i, v := range c.Versions {
		if i < 3 {
			text += ", " + v.Version
		}
	}
	switch {
	case c.Trained && c.Untrained == "":
		text += ", trained"
	case c.Untrained != "":
		text += fmt.Sprintf(", %d trained (%s)", c.TrainedOn, c.Untrained)
	}
	s.line(indent, "%s, %d ms", text, c.MS)
	for i, m := range c.Messages {
		switch of := s.answers.Of(m); {
		case of == 0:
			s.message(indent+"  < ", m)
		case i > 0 || of != c.Parent: // that of the call above is not named
			s.line(indent+"  < ", "the answer of call %d, unchanged", of)
		}
	}
	switch {
	case c.Fault != nil:
		s.line(indent+"  > ", "refused: %s", c.Fault.Message)
	case c.Message != nil:
		s.message(indent+"  > ", c.Message)
		s.answers.Add(c.Number, c.Message)
	}
}

// message writes the text of a message and its tool calls.
func (s *shower) message(indent string, raw json.RawMessage) {
	m := trajectory.ReadMessage(raw)
	if m.Text != "" || len(m.Tools) == 0 {
		s.line(indent, "%s: %s", m.Role, plain.Line(trajectory.WithoutData(m.Text), shownText))
	}
	for _, t := range m.Tools {
		s.line(indent, "%s calls %s %s", m.Role, t.Name, plain.Line(trajectory.WithoutData(t.Arguments), shownText))
	}
}
