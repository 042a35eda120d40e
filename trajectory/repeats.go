package trajectory

import "github.com/turngate/turngate/schema"

// repeatsFrom is the number of calls one after the other from which a repetition is
// a finding.
const repeatsFrom = 5

// repetition is a number of calls with the same tag one after the other, each asked
// after the answer before, that have something in common.
type repetition struct {
	first, calls int
	what         string
}

// next adds a call.
func (r *reader) next(of *repetition, call int, same bool) {
	if same {
		of.calls++
		return
	}
	r.repeated(of)
	of.first, of.calls = call, 1
}

func (r *reader) repeated(of *repetition) {
	if of.calls >= repeatsFrom {
		r.find(LevelWarning, "repeats", of.first, "%d calls one after the other, from call %d on, have the same %s", of.calls, of.first, of.what)
	}
}

// repeats tells of an agent that asks the same again and again, and of a model that
// answers its own turns the same. Titles and the turns of sub-agents may have the
// same answers.
func (r *reader) repeats() {
	last, prompts := map[string]*Call{}, map[string]*repetition{} // by tag
	answers := &repetition{what: "answer"}
	for _, c := range r.out.Calls {
		if !c.answered || !c.committed {
			continue
		}
		if prompts[c.Tag] == nil {
			prompts[c.Tag] = &repetition{what: "messages"}
		}
		p := last[c.Tag]
		after := p != nil && mayPrecede(p, c)
		r.next(prompts[c.Tag], c.Number, after && !c.broken && !p.broken && c.conversation == p.conversation)
		if c.Tag == schema.TagAgent {
			r.next(answers, c.Number, after && c.said.whole == p.said.whole)
		}
		last[c.Tag] = c
	}
	for _, of := range prompts {
		r.repeated(of)
	}
	r.repeated(answers)
}
