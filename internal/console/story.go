package console

import (
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Bounds of the story of a rollout, in bytes.
const (
	maxStory   = 8 << 20   // of its entries; the first ones are forgotten first
	maxBatch   = 1 << 20   // of the entries that a browser gets at once
	maxText    = maxShown  // of the streamed text of a call
	maxStreams = 64        // open calls with a streamed text
	maxEnded   = 10_000    // calls that are known to have ended
	maxEntry   = 256 << 10 // of an entry's texts
)

// story has the messages about a running rollout.
type story struct {
	mu      sync.Mutex
	origin  string // empty: nothing was heard yet
	old     uint64 // number of the newest event when listening began
	entries []entry
	bytes   int
	last    uint64 // number of the last entry
	attempt int    // the newest one
	lost    uint64 // number of the last entry that was forgotten
	texts   map[callKey]*text
	ended   map[callKey]bool   // calls of which no more pieces are wanted
	answers trajectory.Answers // of the newest attempt
	trouble string
	changed chan struct{} // is closed at the next change
}

type entry struct {
	n     uint64
	size  int
	shown *Entry
}

type callKey struct{ attempt, call int }

// text is the answer to an open call as far as it was streamed.
type text struct {
	content, reasoning, tools strings.Builder
	late                      bool // its call began before the console listened
	cut                       bool // there is more
}

// progress is the part of a text that a browser has, in bytes.
type progress struct {
	content, reasoning, tools int
	cut                       bool
}

// Piece is a new part of a streamed text.
type Piece struct {
	Attempt   int    `json:"attempt"`
	Call      int    `json:"call"`
	First     bool   `json:"first,omitempty"` // it replaces the text that the page has
	Text      string `json:"text,omitempty"`
	Reasoning string `json:"reasoning,omitempty"`
	Tools     string `json:"tools,omitempty"`
	Late      bool   `json:"late,omitempty"` // the beginning may be missing
	Cut       bool   `json:"cut,omitempty"`  // there is more in the answer
}

func newStory() *story {
	return &story{texts: map[callKey]*text{}, ended: map[callKey]bool{}, answers: trajectory.Answers{}, changed: make(chan struct{})}
}

func (s *story) listener() recorded.Listener {
	return recorded.Listener{Begin: s.begin, Event: s.add, Piece: s.piece}
}

// wake tells the browsers of a change. The caller has the lock.
func (s *story) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *story) begin(origin string, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = ""
	if s.old = last; s.origin != origin {
		s.origin, s.entries, s.bytes, s.last, s.lost, s.attempt, s.texts = origin, nil, 0, 0, 0, 0, map[callKey]*text{}
		clear(s.ended)
		clear(s.answers)
	}
	s.wake()
}

func (s *story) setTrouble(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble = ""; err != nil {
		s.trouble = plain.Line(err.Error(), maxFault)
	}
	s.wake()
}

// add adds an event. After an interruption the source tells of some again.
func (s *story) add(n uint64, e *schema.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= s.last {
		return
	}
	s.last = n
	if e.Attempt > s.attempt { // the open calls of earlier ones get no answer any more
		s.attempt = e.Attempt
		maps.DeleteFunc(s.texts, func(key callKey, _ *text) bool { return key.attempt < e.Attempt })
		clear(s.answers)
	}
	shown, size := entryOf(e, s.answers)
	if shown == nil {
		return
	}
	s.entries = append(s.entries, entry{n, size, shown})
	s.bytes += size
	for s.bytes > maxStory {
		s.bytes -= s.entries[0].size
		s.lost = s.entries[0].n
		s.entries[0] = entry{}
		s.entries = s.entries[1:]
	}
	if e.LLM != nil {
		s.answered(e)
		key := callKey{e.Attempt, e.LLM.Number}
		switch {
		case e.LLM.Reply != nil || e.LLM.Fault != nil || e.LLM.MS > 0:
			delete(s.texts, key)
			if len(s.ended) == maxEnded {
				clear(s.ended)
			}
			s.ended[key] = true
		default:
			if t := s.text(key); t != nil {
				t.late = n <= s.old
			}
		}
	}
	if e.Result != nil {
		clear(s.texts)
	}
	s.wake()
}

// answered remembers the answer of a call, which the agent sends back.
func (s *story) answered(e *schema.Event) {
	if e.LLM.Reply == nil || e.Attempt != s.attempt {
		return
	}
	if len(s.answers) == maxEnded {
		clear(s.answers)
	}
	s.answers.Add(e.LLM.Number, e.LLM.Reply.Message)
}

// piece adds a piece of the answer to an open call. Pieces may be heard before the event
// that their call began, and after the one that it ended.
func (s *story) piece(attempt, call int, d *schema.Delta) {
	var part struct {
		Content   string `json:"content"`
		Reasoning string `json:"reasoning_content"`
		ToolCalls []struct {
			Function struct {
				Name      string `json:"name"`
				Arguments string `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	}
	if json.Unmarshal(d.Delta, &part) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.text(callKey{attempt, call})
	if t == nil {
		return
	}
	t.add(&t.content, part.Content)
	t.add(&t.reasoning, part.Reasoning)
	for _, u := range part.ToolCalls {
		if u.Function.Name != "" {
			t.add(&t.tools, u.Function.Name+" ")
		}
		t.add(&t.tools, u.Function.Arguments)
	}
	s.wake()
}

// text returns the text of an open call; nil: there is none for it.
func (s *story) text(key callKey) *text {
	if t := s.texts[key]; t != nil || s.ended[key] || key.attempt < s.attempt || len(s.texts) == maxStreams {
		return t
	}
	t := &text{}
	s.texts[key] = t
	return t
}

func (t *text) add(to *strings.Builder, more string) {
	if left := maxText - to.Len(); len(more) > left {
		t.cut = true
		more = more[:max(left, 0)]
		for !utf8.ValidString(more) && more != "" {
			more = more[:len(more)-1]
		}
	}
	to.WriteString(plain.Text(more))
}

// part is the news for one browser.
type part struct {
	origin  string
	begin   bool // the browser forgets the events that it has
	lost    bool // events before these were forgotten
	entries []entry
	more    bool // there are further entries
	texts   []Piece
	trouble string
	changed <-chan struct{}
}

// after returns the entries behind a number of a series, and the new parts of the texts,
// and changes sent accordingly. A browser of another series, or one that was too slow,
// begins anew.
func (s *story) after(origin string, n uint64, sent map[callKey]progress) part {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := part{origin: s.origin, changed: s.changed, trouble: s.trouble}
	if s.origin == "" {
		return p
	}
	if origin != s.origin || n < s.lost {
		p.begin, p.lost, n = true, s.lost > 0, 0
		clear(sent)
	}
	first := len(s.entries)
	for first > 0 && s.entries[first-1].n > n {
		first--
	}
	size := 0
	for _, e := range s.entries[first:] {
		if p.more = size > maxBatch; p.more {
			break
		}
		size += e.size
		p.entries = append(p.entries, e)
	}
	for key := range sent {
		if s.texts[key] == nil {
			delete(sent, key)
		}
	}
	if p.more { // the page has not seen the calls of some texts yet
		return p
	}
	for key, t := range s.texts {
		had, seen := sent[key]
		now := progress{t.content.Len(), t.reasoning.Len(), t.tools.Len(), t.cut}
		if now == had || now == (progress{}) {
			continue
		}
		sent[key] = now
		p.texts = append(p.texts, Piece{
			Attempt: key.attempt, Call: key.call, First: !seen, Late: t.late, Cut: t.cut,
			Text: t.content.String()[had.content:], Reasoning: t.reasoning.String()[had.reasoning:], Tools: t.tools.String()[had.tools:],
		})
	}
	return p
}
