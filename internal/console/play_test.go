package console

import (
	"encoding/json"
	"errors"
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
		Tools: []byte(`[{"type":"function","function":{"name":"bash","description":"runs\u202e","parameters":{"properties":{"command\u001b":{"type":"string"}}}}},{"type":"other"}]`),
	}}
	q := &question{shown: questionOf(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 3}, c), tools: []string{"bash"}, reply: make(chan *schema.Reply, 1)}
	p.games["alpha-1"] = &game{questions: []*question{q}}

	list, changed := p.questions("alpha-1")
	if len(list) != 1 || list[0].Number != 3 || list[0].Messages[0].Text != "\ufffd[2J<b>" || len(list[0].Tools) != 1 || list[0].Tools[0].Description != "runs\ufffd" {
		t.Fatalf("got %+v", list)
	}
	if _, safe := list[0].Tools[0].Schema.(map[string]any)["properties"].(map[string]any)["command\ufffd"]; !safe {
		t.Errorf("got the schema %v", list[0].Tools[0].Schema)
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
	p.change(func() { p.games["alpha-1"].questions = nil })
	<-changed
	if err := p.reply("alpha-1", 3, Reply{Gen: "g1", Text: "x"}); !errors.Is(err, errAnswered) {
		t.Errorf("got %v", err)
	}
}
