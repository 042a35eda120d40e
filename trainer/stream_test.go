package trainer_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestFastPiecesTravelTogether with the same text, ids and log-probs in order,
// and only pure text is merged.
func TestFastPiecesTravelTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var text strings.Builder
	var ids []int32
	var logprobs []float32
	frames, tools := 0, 0
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Kind != schema.FrameDelta {
			return nil
		}
		frames++
		var d struct {
			Content   string
			ToolCalls []any `json:"tool_calls"`
		}
		if err := json.Unmarshal(f.Delta.Delta, &d); err != nil {
			t.Errorf("%v: %s", err, f.Delta.Delta)
		}
		text.WriteString(d.Content)
		tools += len(d.ToolCalls)
		ids = append(ids, f.Delta.CompletionIDs.Unpack()...)
		logprobs = append(logprobs, f.Delta.Logprobs.Unpack()...)
		return nil
	})
	s := next(t, b.trainer).Stream()
	const pieces = 1000
	want := ""
	for i := range pieces {
		piece := []string{`a\n`, `\"`, `é`, `\u2028`, ` }"`[:2]}[i%5]
		delta := `{"content":"` + piece + `"}`
		if i == 500 {
			delta = `{"tool_calls":[{"index":0}]}`
			piece = ""
		}
		want += piece
		d := &schema.Delta{Delta: json.RawMessage(delta), CompletionIDs: schema.PackTokenIDs([]int32{int32(i)}), Logprobs: schema.PackLogprobs([]float32{float32(-i)})}
		if err := s.Delta(d); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delta(&schema.Delta{}); err == nil {
		t.Error("a piece that says nothing was taken")
	}
	if err := s.Final(&schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"all"}`), FinishReason: "stop"}); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "all")
	var unquoted string
	if err := json.Unmarshal([]byte(`"`+want+`"`), &unquoted); err != nil {
		t.Fatal(err)
	}
	if text.String() != unquoted || tools != 1 || len(ids) != pieces || len(logprobs) != pieces || frames > pieces/2 {
		t.Errorf("%d frames, %d ids, %d log-probs, %d tool calls, %d bytes of text, want %d", frames, len(ids), len(logprobs), tools, text.Len(), len(unquoted))
	}
	for i, id := range ids {
		if id != int32(i) || logprobs[i] != float32(-i) {
			t.Fatalf("id %d at %d", id, i)
		}
	}
}

// TestARepeatedRequestGetsTheBufferedPiecesInOrder: the earlier pieces come
// first, so that the worker sees no gap.
func TestARepeatedRequestGetsTheBufferedPiecesInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_ = b.ask(t.Context(), 1, 1, nil) // no longer answered
	s := next(t, b.trainer).Stream()
	for _, piece := range []string{"a", "b"} {
		if err := s.Delta(&schema.Delta{Delta: json.RawMessage(`{"tool_calls":[{"index":0,"id":"` + piece + `"}]}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delta(&schema.Delta{Delta: json.RawMessage(`{"content":"c"}`)}); err != nil { // within the window of the last
		t.Fatal(err)
	}
	seen, begun := "", make(chan struct{})
	var absent int
	got := b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		switch f.Kind {
		case schema.FrameDelta:
			if seen += string(f.Delta.Delta); strings.Contains(seen, "content") {
				close(begun)
			}
		case schema.FrameAbsent:
			absent++
		}
		return nil
	})
	<-begun
	if err := s.Final(text("abc")); err != nil {
		t.Fatal(err)
	}
	said(t, <-got, "abc")
	if want := `{"tool_calls":[{"index":0,"id":"a"}]}{"tool_calls":[{"index":0,"id":"b"}]}{"content":"c"}`; seen != want || absent != 0 {
		t.Errorf("%s, asked again %d times", seen, absent)
	}
}

// TestServeSendsPiecesAtOnce: pieces arrive before the answer is whole.
func TestServeSendsPiecesAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	heard, ended := make(chan string, 8), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		_ = b.trainer.Serve(ctx, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
			for _, piece := range []string{"one", "two"} {
				if err := c.Emit(&schema.Delta{Delta: json.RawMessage(`{"content":"` + piece + `"}`)}); err != nil {
					return nil, err
				}
				select { // the agent's side has it before the next is made
				case got := <-heard:
					if got != `{"content":"`+piece+`"}` {
						t.Errorf("heard %s, want %s", got, piece)
					}
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return text("onetwo"), nil
		})
	}()
	a := <-b.ask(t.Context(), 1, 1, func(f schema.Frame) error {
		if f.Kind == schema.FrameDelta {
			heard <- string(f.Delta.Delta)
		}
		return nil
	})
	said(t, a, "onetwo")
	cancel()
	<-ended
}
