package gate

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// answerError names the field because of which an answer cannot go to the
// agent. Such an answer is not committed; the agent gets an error and asks
// again.
type answerError struct{ field, reason string }

func (e *answerError) Error() string { return "the answer's " + e.field + ": " + e.reason }

// agentReply is a reply in the form for the agent. The transcript keeps the
// model's own reply.
type agentReply struct {
	schema.Reply
	own  *schema.Reply // the model's
	note string
}

// answered returns a reply in the form for the agent.
func (x *exchange) answered(r *schema.Reply, p *pieces) (*agentReply, error) {
	d := &agentReply{Reply: *r, own: r}
	message, n, err := schema.MendAnswer(r.Message)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		d.note = replacedNote(n) + " in what the agent reads"
	}
	if d.Message = message; p.any {
		if err := p.differ(&d.Reply); err != nil {
			return nil, err
		}
	}
	own, calls, err := x.s.toolIDs.Deliver(x.number, message, r.KeepReasoning)
	if err != nil {
		return nil, err
	}
	d.Message, d.FinishReason = json.RawMessage(own), canonical.FinishReason(r.FinishReason, calls)
	return d, nil
}

func replacedNote(n int) string {
	if n == 1 {
		return "one character that is no Unicode was replaced by U+FFFD"
	}
	return fmt.Sprintf("%d characters that are no Unicode were replaced by U+FFFD", n)
}

// pieces joins the parts of a streamed answer.
type pieces struct {
	any                bool
	content, reasoning []byte // JSON text without quotes
	calls              canonical.ToolCalls
	ids                schema.TokenIDs
	logprobs           schema.Logprobs
}

// add checks a piece and returns it in the form for the agent, without its tool
// calls: the agent gets them with the end of the answer, as its dialect writes
// whole ones, since the pieces of several calls may be mixed. Nil: nothing is left.
func (p *pieces) add(d *schema.Delta) (*schema.Delta, error) {
	text, n, err := schema.MendPiece(d.Delta)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		mended := *d
		mended.Delta = text
		d = &mended
	}
	message, err := canonical.ReadAnswer(d.Delta)
	if err != nil {
		return nil, err
	}
	p.any = true
	p.content, p.reasoning = append(p.content, message.Content.Inner()...), append(p.reasoning, message.Reasoning.Inner()...)
	if len(message.ToolCalls) > maxToolCalls {
		return nil, &answerError{"tool_calls", fmt.Sprintf("want at most %d", maxToolCalls)}
	}
	p.calls.Add(message.ToolCalls)
	p.ids, p.logprobs = append(p.ids, d.CompletionIDs...), append(p.logprobs, d.Logprobs...)
	if len(p.calls) > maxToolCalls {
		return nil, &answerError{"tool_calls", fmt.Sprintf("want at most %d", maxToolCalls)}
	}
	return withoutCalls(d)
}

// maxToolCalls bounds the tool calls of a streamed answer.
const maxToolCalls = 4096

func withoutCalls(d *schema.Delta) (*schema.Delta, error) {
	if !bytes.Contains(d.Delta, []byte(`"tool_calls"`)) {
		return d, nil
	}
	o := rawjson.NewObject()
	err := rawjson.EachMember(d.Delta, func(name string, v jsontext.Value) error {
		if name != "tool_calls" {
			o.Raw(name, v)
		}
		return nil
	})
	if err != nil || o.Empty() {
		return nil, err
	}
	rest := *d
	rest.Delta = o.Done()
	return &rest, nil
}

// differ returns an error for the first field in which the whole answer differs
// from its pieces.
func (p *pieces) differ(r *schema.Reply) error {
	whole, err := canonical.ReadAnswer(r.Message)
	if err != nil {
		return err
	}
	for _, t := range []struct {
		field  string
		pieces []byte
		whole  canonical.Text
	}{{"content", p.content, whole.Content}, {"reasoning_content", p.reasoning, whole.Reasoning}} {
		if !sameText(t.pieces, t.whole.Inner()) {
			return &answerError{t.field, fmt.Sprintf("its pieces have %s, the whole has %s", clipped(t.pieces), clipped(t.whole.Inner()))}
		}
	}
	if len(p.calls) != len(whole.ToolCalls) {
		return &answerError{"tool_calls", fmt.Sprintf("its pieces have %d, the whole has %d", len(p.calls), len(whole.ToolCalls))}
	}
	for i := range p.calls {
		was, is := &p.calls[i], &whole.ToolCalls[i]
		for _, t := range [][3]string{{"id", was.ID, is.ID}, {"name", was.Name(), is.Name()}, {"arguments", was.Input(), is.Input()}} {
			if t[1] != t[2] {
				return &answerError{fmt.Sprintf("tool_calls[%d].%s", i, t[0]), fmt.Sprintf("its pieces have %s, the whole has %s", clipped([]byte(t[1])), clipped([]byte(t[2])))}
			}
		}
	}
	// A stream may leave out ids, or leave out all log-probs.
	if len(p.ids) > 0 && !bytes.Equal(p.ids, r.CompletionIDs) {
		return &answerError{"completion_ids", fmt.Sprintf("its pieces have %d, the whole has %d, or others", p.ids.Len(), r.CompletionIDs.Len())}
	}
	if len(p.logprobs) > 0 && !bytes.Equal(p.logprobs, r.Logprobs) {
		return &answerError{"logprobs", fmt.Sprintf("its pieces have %d, the whole has %d, or others", p.logprobs.Len(), r.Logprobs.Len())}
	}
	return nil
}

// sameText compares the contents of two JSON strings, given without quotes.
func sameText(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	was, err := rawjson.Unquote(append(append(jsontext.Value{'"'}, a...), '"'))
	if err != nil {
		return false
	}
	is, err := rawjson.Unquote(append(append(jsontext.Value{'"'}, b...), '"'))
	return err == nil && was == is
}

func clipped(s []byte) string { return fmt.Sprintf("%q", schema.Clip(string(s), 80)) }

// NoteOf describes the differences between a call and the agent's request;
// empty means none.
func NoteOf(c *schema.Call) string {
	if c.Replaced == 0 {
		return ""
	}
	return replacedNote(c.Replaced) + " in what the agent sent"
}
