package console

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// A person's answer becomes a reply. One that the call does not take names its field, and
// the call waits on.
func TestAPersonsReply(t *testing.T) {
	p := newPlayer(&Play{}, zerolog.Nop())
	c := &trainer.Call{Gen: "g1", Call: schema.Call{
		Key: "alpha-1/1/3", Messages: []json.RawMessage{[]byte(`{"role":"user","content":"\u001b[2J<b>"}`)},
		Tools: []byte(`[{"type":"function","function":{"name":"bash","description":"runs\u202e","parameters":{"properties":{"command":{"type":"string","description":"to run\u202e"}},"required":["command"]}}},{"type":"other"}]`),
	}}
	q := &question{shown: questionOf(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 3}, c), tools: []string{"bash"}, reply: make(chan *schema.Reply, 1)}
	p.games["alpha-1"] = &game{questions: []*question{q}}

	list, changed := p.questions("alpha-1")
	if len(list) != 1 || list[0].Number != 3 || list[0].Messages[0].Text != "\ufffd[2J<b>" || len(list[0].Tools) != 1 || list[0].Tools[0].Description != "runs\ufffd" {
		t.Fatalf("got %+v", list)
	}
	if want := []Field{{Name: "command", About: "to run", Kind: "string", Required: true}}; !reflect.DeepEqual(list[0].Tools[0].Fields, want) {
		t.Errorf("got the fields %+v", list[0].Tools[0].Fields)
	}
	if other, _ := p.questions("alpha-2"); len(other) != 0 {
		t.Errorf("another rollout has %+v", other)
	}

	for want, r := range map[string]Reply{
		"text: want a text or a tool call":       {Gen: "g1"},
		"tools[0].tool: 1 is not valid":          {Gen: "g1", Tools: []ToolArg{{1, []byte(`{}`)}}},
		"tools[0].arguments: want a JSON object": {Gen: "g1", Tools: []ToolArg{{0, []byte(`[]`)}}},
		errAnswered.Error():                      {Gen: "g0", Text: "for an earlier generation"},
	} {
		if err := p.reply("alpha-1", 3, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", r, err, want)
		}
	}
	if err := p.reply("alpha-1", 3, Reply{Gen: "g1", Text: "x", Tools: []ToolArg{{0, []byte(`{"command":"ls"}`)}}}); err != nil {
		t.Fatal(err)
	}
	r := <-q.reply
	m, err := trainer.ParseMessage(r.Message)
	if err != nil || m.Content != "x" || len(m.ToolCalls) != 1 || m.ToolCalls[0].Name != "bash" || m.ToolCalls[0].Arguments != `{"command":"ls"}` || r.FinishReason != "tool_calls" {
		t.Errorf("got %+v, %v", m, err)
	}
	<-changed
	if err := p.reply("alpha-1", 3, Reply{Gen: "g1", Text: "a second answer"}); !errors.Is(err, errAnswered) {
		t.Errorf("got %v", err)
	}
	for range maxQuestions + 1 {
		p.games["alpha-1"].questions = append(p.games["alpha-1"].questions, &question{})
	}
	if list, _ := p.questions("alpha-1"); len(list) != maxQuestions {
		t.Errorf("a page shows %d questions at once", len(list))
	}
}

// The schema of a tool is the agent's: it may have any form.
func TestTheFormOfATool(t *testing.T) {
	for schema, want := range map[string][]Field{
		`{"properties":{"b":{"type":["integer","null"]},"c":{"type":"object"},"a":{"enum":["x",1,"\u202e"]}},"required":["c","b"]}`: {
			{Name: "c", Kind: "json", Required: true}, {Name: "b", Kind: "integer", Required: true}, {Name: "a", Kind: "json", Choices: []string{`"x"`, "1", `"\u202e"`}},
		},
		`{"properties":{}}`:                            {},
		`{"properties":{"a\u001b":{"type":"string"}}}`: nil, `{"properties":{"a":5}}`: nil, `{"properties":{"a":{"enum":5}}}`: nil, `{"properties":{"a":{}},"required":5}`: nil,
		`{"properties":null}`: nil, `{}`: nil, `[]`: nil, ``: nil,
	} {
		if got := fieldsOf([]byte(schema)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", schema, got, want)
		}
	}
}

// A person sees the newest messages of a call that is too large to be shown whole.
func TestALargeQuestion(t *testing.T) {
	c := &trainer.Call{}
	for range maxAsked / 10_000 {
		c.Messages = append(c.Messages, []byte(`{"role":"user","content":"`+strings.Repeat("x", 20_000)+`"}`))
	}
	c.Messages = append(c.Messages, []byte(`{"role":"user","content":"the newest"}`))
	got := questionOf(schema.Key{}, c).Messages
	if first, last := got[0], got[len(got)-1]; first.Role != "more" || first.Cut < maxAsked/2 || last.Text != "the newest" || len(got) > maxAsked/20_000+3 {
		t.Errorf("got %d messages, from %+v to %+v", len(got), first, last)
	}
}
