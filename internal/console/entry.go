package console

import (
	"cmp"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Entry is an event of a running rollout, as its page shows it. One of its parts is set.
type Entry struct {
	At      int64         `json:"at"` // Unix ms
	Attempt int           `json:"attempt"`
	Phase   *PhaseEntry   `json:"phase,omitempty"`
	Call    *CallEntry    `json:"call,omitempty"`
	Wait    *WaitEntry    `json:"wait,omitempty"`
	Output  *OutputEntry  `json:"output,omitempty"`
	Ended   schema.Status `json:"ended,omitempty"` // of the rollout
}

// PhaseEntry tells that a stage began or ended.
type PhaseEntry struct {
	Name  string `json:"name"`
	Ended bool   `json:"ended,omitempty"`
	MS    int64  `json:"ms"`
	Exit  string `json:"exit,omitempty"`
	Fault string `json:"fault,omitempty"`
}

// CallEntry tells that a model call began or ended.
type CallEntry struct {
	Number  int    `json:"number"`
	Ended   bool   `json:"ended,omitempty"`
	Role    string `json:"role,omitempty"`
	Model   string `json:"model,omitempty"`
	New     []Turn `json:"new,omitempty"` // messages that the call before did not have
	Answer  *Turn  `json:"answer,omitempty"`
	MS      int64  `json:"ms,omitempty"`
	Prompt  int64  `json:"prompt,omitempty"`     // tokens
	Sampled int64  `json:"completion,omitempty"` // tokens
	Finish  string `json:"finish,omitempty"`
	Fault   string `json:"fault,omitempty"`
	Note    string `json:"note,omitempty"`
}

// WaitEntry tells of a wait.
type WaitEntry struct {
	For   string `json:"for"`
	Call  int    `json:"call,omitempty"` // 0: the rollout
	Text  string `json:"text"`
	MS    int64  `json:"ms"`
	Ended bool   `json:"ended,omitempty"`
}

// OutputEntry is a line of output.
type OutputEntry struct {
	Source string `json:"source"`
	Text   string `json:"text"`
}

// entryOf returns an event as it is shown, and its approximate size in bytes; nil for one
// that is not shown. known has the answers of the attempt so far.
func entryOf(e *schema.Event, known trajectory.Answers) (*Entry, int) {
	out := &Entry{At: e.At, Attempt: e.Attempt}
	left := maxEntry
	switch {
	case e.Phase != nil:
		p := e.Phase
		out.Phase = &PhaseEntry{Name: cell(p.Name), Ended: p.Ended || p.Fault != nil, MS: p.MS, Fault: faultText(p.Fault)}
		if p.Exit != nil {
			out.Phase.Exit = cell(p.Exit.String())
		}
	case e.LLM != nil:
		out.Call = callOf(e.LLM, known, &left)
	case e.Wait != nil:
		w := e.Wait
		out.Wait = &WaitEntry{For: cell(w.For), Call: w.Call, Text: plain.Line(w.String(), maxFault), MS: w.MS, Ended: w.Ended}
	case e.Log != nil:
		out.Output = &OutputEntry{Source: cell(e.Log.Source)}
		out.Output.Text, _ = shown(e.Log.Text, maxShown)
		left -= len(out.Output.Text)
	case e.Verify != nil:
		v := e.Verify
		text := v.Do + " " + cmp.Or(v.Path, v.Command)
		if v.Exit != nil {
			text += ": " + v.Exit.String()
		}
		out.Output = &OutputEntry{Source: "trainer", Text: plain.Line(text+" "+faultText(v.Fault), maxFault)}
	case e.Net != nil && !e.Net.Allowed:
		out.Output = &OutputEntry{Source: "network", Text: plain.Line("refused: "+e.Net.Host+" "+e.Net.Reason, maxFault)}
	case e.Result != nil:
		out.Ended = e.Result.Status
	default:
		return nil, 0
	}
	return out, maxEntry - left + 200
}

func callOf(l *schema.LLMEvent, known trajectory.Answers, left *int) *CallEntry {
	c := &CallEntry{Number: l.Number, MS: l.MS, Fault: faultText(l.Fault), Note: plain.Line(l.Note, maxFault)}
	c.Ended = l.Reply != nil || l.Fault != nil || l.MS > 0
	if q := l.Call; q != nil {
		c.Role, c.Model = cell(q.Tag), cell(q.Model)
		c.New = turnsOf(q.Messages, known, left)
	}
	if a := l.Reply; a != nil {
		answer := turnOf(a.Message, nil, left)
		c.Answer, c.Finish = &answer, cell(a.FinishReason)
		c.Prompt, c.Sampled = a.Usage.PromptTokens, a.Usage.CompletionTokens
	}
	return c
}

func faultText(f *schema.Fault) string {
	if f == nil {
		return ""
	}
	return plain.Line(f.Error(), maxFault)
}
