package console

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func output(text string) *schema.Event {
	return &schema.Event{Attempt: 1, Log: &schema.LogEvent{Source: "verify", Text: text}}
}

func call(number int) *schema.Event {
	return &schema.Event{Attempt: 1, LLM: &schema.LLMEvent{Number: number, Call: &schema.Call{Tag: "agent"}}}
}

func answered(number int) *schema.Event {
	return &schema.Event{Attempt: 1, LLM: &schema.LLMEvent{Number: number, Reply: &schema.Reply{Message: []byte(`{"role":"assistant","content":"whole"}`)}}}
}

func content(text string) *schema.Delta {
	delta, err := json.Marshal(map[string]string{"content": text})
	if err != nil {
		panic(err) // a text has a JSON form
	}
	return &schema.Delta{Delta: delta}
}

// A browser gets each entry once, also after a lost connection, and all anew from
// another series of events.
func TestABrowserGoesOnWhereItWas(t *testing.T) {
	s := newStory()
	if p := s.after("", 0, map[callKey]progress{}); p.begin || len(p.entries) > 0 {
		t.Fatalf("before anything was heard: got %+v", p)
	}
	s.begin("a", 0)
	for n := range uint64(5) {
		s.add(2*n+1, output("x"))
	}
	s.add(3, output("told again"))
	p := s.after("", 0, map[callKey]progress{})
	if !p.begin || p.lost || p.origin != "a" || len(p.entries) != 5 || p.more {
		t.Fatalf("got %+v", p)
	}
	if p = s.after("a", 5, map[callKey]progress{}); p.begin || len(p.entries) != 2 || p.entries[0].n != 7 {
		t.Fatalf("got %+v", p)
	}
	s.setTrouble(errors.New("away\x1b[2J"))
	if p = s.after("a", 9, map[callKey]progress{}); p.begin || len(p.entries) != 0 || p.trouble != "away [2J" {
		t.Fatalf("got %+v", p)
	}
	s.begin("b", 0)
	s.add(1, output("x"))
	if p = s.after("a", 9, map[callKey]progress{}); !p.begin || p.origin != "b" || len(p.entries) != 1 || p.trouble != "" {
		t.Fatalf("got %+v", p)
	}
}

// The first entries of a large story are forgotten. A browser that has not read them
// begins anew, and gets the others in batches.
func TestASlowBrowserBeginsAnew(t *testing.T) {
	s := newStory()
	s.begin("a", 0)
	line := strings.Repeat("x", maxShown)
	for n := range uint64(300) {
		s.add(n+1, output(line))
	}
	if s.bytes > maxStory || len(s.entries) == 300 {
		t.Fatalf("it has %d entries of %d bytes", len(s.entries), s.bytes)
	}
	p := s.after("a", 1, map[callKey]progress{})
	if !p.begin || !p.lost || !p.more {
		t.Fatalf("got begin %v, lost %v, more %v", p.begin, p.lost, p.more)
	}
	last, batches := p.entries[len(p.entries)-1].n, 1
	for ; p.more; batches++ {
		p = s.after("a", last, map[callKey]progress{})
		if p.begin || p.entries[0].n != last+1 {
			t.Fatalf("after %d got begin %v and %d", last, p.begin, p.entries[0].n)
		}
		last = p.entries[len(p.entries)-1].n
	}
	if last != 300 || batches < 2 {
		t.Errorf("the last of %d batches ends with %d", batches, last)
	}
}

// A browser gets each part of a streamed text once, and one that comes back gets all of
// it. The whole answer takes its place.
func TestStreamedText(t *testing.T) {
	s := newStory()
	s.begin("a", 4)
	s.add(3, call(1))
	s.piece(1, 1, content("late"))
	s.piece(1, 2, content("early "))
	s.add(5, call(2))
	s.piece(1, 2, content("\x1b[2J<b>"))
	s.piece(1, 2, &schema.Delta{Delta: []byte(`{"tool_calls":[{"function":{"name":"bash","arguments":"{\"co"}}]}`)})
	sent := map[callKey]progress{}
	of := func(sent map[callKey]progress, call int) Piece {
		t.Helper()
		for _, p := range s.after("a", 5, sent).texts {
			if p.Call == call {
				return p
			}
		}
		return Piece{}
	}
	if p := of(map[callKey]progress{}, 1); !p.First || !p.Late || p.Text != "late" {
		t.Errorf("got %+v", p)
	}
	if p := of(sent, 2); !p.First || p.Late || p.Text != "early \ufffd[2J<b>" || p.Tools != `bash {"co` {
		t.Errorf("got %+v", p)
	}
	s.piece(1, 2, content("more"))
	if p := of(sent, 2); p.First || p.Text != "more" || p.Tools != "" {
		t.Errorf("got %+v", p)
	}
	if p := of(map[callKey]progress{}, 2); !p.First || p.Text != "early \ufffd[2J<b>more" {
		t.Errorf("got %+v", p)
	}
	s.piece(1, 2, content(strings.Repeat("é", maxText)))
	if p := of(sent, 2); !p.Cut || len(s.texts[callKey{1, 2}].content.String()) > maxText {
		t.Errorf("the text is cut: %v, it has %d bytes", p.Cut, len(s.texts[callKey{1, 2}].content.String()))
	}
	s.add(6, answered(2))
	s.piece(1, 2, content("after the end"))
	if p := of(map[callKey]progress{}, 2); p.Call != 0 {
		t.Errorf("the call has ended, and got %+v", p)
	}
	again := call(1)
	again.Attempt = 2
	s.add(7, again)
	s.piece(1, 3, content("of a lost worker"))
	if len(s.texts) != 1 || s.texts[callKey{2, 1}] == nil {
		t.Errorf("of an earlier attempt there are texts: %v", s.texts)
	}
}

// Many small messages and tools take as much room as their pages need, so that an agent
// cannot fill the memory with them.
func TestSmallMessagesTakeRoom(t *testing.T) {
	messages := slices.Repeat([]json.RawMessage{[]byte(`{"role":"user"}`)}, 60_000)
	tools := []byte(`{"role":"assistant","tool_calls":[` + strings.Repeat(`{"function":{}},`, 60_000) + `{"function":{}}]}`)
	for range 100 {
		messages = append(messages, tools)
	}
	e := call(1)
	e.LLM.Call.Messages = messages
	shown, size := entryOf(e, nil)
	if last := shown.Call.New[len(shown.Call.New)-1]; size < maxEntry || len(shown.Call.New) > maxEntry/turnSize+2 || last.Role != "more" || last.Cut < 100*len(tools) {
		t.Errorf("got %d messages of %d bytes, the last one is %+v", len(shown.Call.New), size, last)
	}
	left := maxEntry
	if got := turnOf(tools, nil, &left); len(got.Tools) > maxEntry/turnSize {
		t.Errorf("got %d tools", len(got.Tools))
	}
}

// A page of a running rollout has each answer of the attempt once, too.
func TestAnAnswerOfARunningRolloutIsShownOnce(t *testing.T) {
	s := newStory()
	s.begin("a", 0)
	next := func(attempt, number int) *schema.Event {
		return &schema.Event{Attempt: attempt, LLM: &schema.LLMEvent{Number: number, Call: &schema.Call{Tag: "agent", Messages: []json.RawMessage{[]byte(`{"role":"assistant","content":" whole"}`)}}}}
	}
	s.add(1, call(1))
	s.add(2, answered(1))
	s.add(3, next(1, 2))
	s.add(4, next(2, 1))
	p := s.after("", 0, map[callKey]progress{})
	if len(p.entries) != 4 {
		t.Fatalf("got %d entries", len(p.entries))
	}
	if m := p.entries[2].shown.Call.New[0]; m.Same != 1 || m.Text != "" {
		t.Errorf("got %+v", m)
	}
	if m := p.entries[3].shown.Call.New[0]; m.Same != 0 || m.Text != " whole" {
		t.Errorf("got %+v in the next attempt", m)
	}
}
