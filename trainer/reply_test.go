package trainer_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestAnUnreadableAnswerIsNotSent: the trainer gets the name of the
// wrong field, and may still answer.
func TestAnUnreadableAnswerIsNotSent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	answered := b.ask(t.Context(), 1, 1, nil)
	p, err := b.trainer.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wrong *schema.InvalidError
	err = p.Reply(&schema.Reply{FinishReason: "tool_calls", Message: json.RawMessage(`{"tool_calls":[{"id":"a","type":"function","function":{"name":"sh","arguments":{"command":"ls"}}}]}`)})
	if !errors.As(err, &wrong) || wrong.Field != "message.tool_calls[0].function.arguments" {
		t.Errorf("an object as arguments: %v", err)
	}
	err = p.Stream().Delta(&schema.Delta{Delta: json.RawMessage(`{"content":["a"]}`)})
	if !errors.As(err, &wrong) || wrong.Field != "delta.content" {
		t.Errorf("a list as a piece of text: %v", err)
	}
	if err := p.Reply(&schema.Reply{FinishReason: "stop", Message: json.RawMessage(`{"role":"assistant","content":"ok"}`)}); err != nil {
		t.Fatal(err)
	}
	if a := <-answered; a.err != nil || string(a.reply.Message) != `{"role":"assistant","content":"ok"}` {
		t.Errorf("got %s, %v", a.reply.Message, a.err)
	}
}
