package trajectory

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
// answers the same.
func (r *reader) repeats() {
	type talk struct {
		last            *Call
		prompt, answers repetition
	}
	talks := map[string]*talk{} // by tag
	for _, c := range r.out.Calls {
		if !c.answered || !c.committed {
			continue
		}
		t := talks[c.Tag]
		if t == nil {
			t = &talk{prompt: repetition{what: "messages"}, answers: repetition{what: "answer"}}
			talks[c.Tag] = t
		}
		after := t.last != nil && mayPrecede(t.last, c)
		r.next(&t.prompt, c.Number, after && !c.broken && !t.last.broken && c.conversation == t.last.conversation)
		r.next(&t.answers, c.Number, after && c.said.whole == t.last.said.whole)
		t.last = c
	}
	for _, t := range talks {
		r.repeated(&t.prompt)
		r.repeated(&t.answers)
	}
}
