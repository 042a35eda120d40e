package gate

import (
	"crypto/sha256"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/schema"
)

// repeats counts calls without progress: prompts that come again, and answers to
// the agent's own turns that come again. Calls of other tags, such as titles, may
// have the same answer many times, so only their prompts count, and only since the
// agent's last new prompt. The session's lock guards it.
type repeats struct {
	prompts map[string]run // by tag
	answer  run
	over    *schema.Fault // the fault of the first call beyond the limit; later calls get it, too
}

// run counts equal values in a row.
type run struct {
	sum [sha256.Size]byte
	n   int
}

// add counts a value and returns the number of equal ones in a row.
func (r *run) add(sum [sha256.Size]byte) int {
	if r.sum != sum {
		*r = run{sum: sum}
	}
	r.n++
	return r.n
}

// asked counts the prompt of a call. It returns a fault if the call goes beyond the
// limit. digest is that of the whole call.
func (r *repeats) asked(tag string, digest []byte, limit int) *schema.Fault {
	if r.over != nil {
		return r.over
	}
	sum := [sha256.Size]byte(digest)
	prompt := r.prompts[tag]
	if tag == schema.TagAgent && prompt.sum != sum || r.prompts == nil {
		r.prompts = map[string]run{}
	}
	n := prompt.add(sum)
	r.prompts[tag] = prompt
	what := ""
	switch {
	case n > limit:
		what = "its prompt was the same"
	case tag == schema.TagAgent && r.answer.n >= limit:
		what = "its model's answer was the same"
	default:
		return nil
	}
	r.over = schema.Faultf("agent", schema.CodeRepeats, schema.WhoAgent, "%s %d times in a row, and it asked again: gate.max_repeats is %d", what, limit, limit)
	return r.over
}

// answered counts the answer to a turn of the agent. Ids of its tool calls do not
// count: engines number calls anew.
func (r *repeats) answered(reply *schema.Reply) {
	m, err := canonical.ReadAnswer(reply.Message)
	if err != nil {
		return
	}
	h := sha256.New()
	part := func(b []byte) {
		h.Write(b)
		h.Write([]byte{0}) // no text in JSON has this byte
	}
	part(m.Content.Inner())
	part(m.Reasoning.Inner())
	for i := range m.ToolCalls {
		part([]byte(m.ToolCalls[i].Name()))
		part([]byte(m.ToolCalls[i].Input()))
	}
	r.answer.add([sha256.Size]byte(h.Sum(nil)))
}
