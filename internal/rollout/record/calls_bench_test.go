package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// BenchmarkRecorder measures the cost of the events and the transcript of one
// call: a turn of 2 KB on a conversation of 64 KB, and an answer of 300 tokens
// to a prompt of 8,000. wait-ns is the part for which the call itself waits.
func BenchmarkRecorder(b *testing.B) {
	account := New(&schema.Request{ID: "alpha-1"}, 1, "w1", Exits{Log: zerolog.Nop(), Emit: func(e *schema.Event) {
		if _, err := schema.Encode(e); err != nil {
			b.Error(err)
		}
	}})
	c := account.Calls
	account.Secret("tg-q7Zr0Nf3uT1wK8sVbY2mC5xEoJ4hL9gPdAiU6nRtXQk")
	call := schema.Call{V: 1, Key: "alpha-1/1/7", Tag: schema.TagAgent, Dialect: "chat", Model: "policy"}
	for range 64 {
		call.Messages = append(call.Messages, json.RawMessage(`{"role":"tool","tool_call_id":"c1","content":"`+strings.Repeat("x", 1000)+`"}`))
	}
	call.Shares = schema.Shares{Base: 6, Keep: 62, Tools: true, Params: true}
	prompt := make([]int32, 8000)
	for i := range prompt {
		prompt[i] = int32(i * 7919 % 150_000)
	}
	reply := schema.Reply{
		V: 1, Message: json.RawMessage(`{"role":"assistant","content":"` + strings.Repeat("y", 1000) + `"}`), FinishReason: "stop",
		PromptIDs: schema.PackTokenIDs(prompt), CompletionIDs: schema.PackTokenIDs(prompt[:300]), Logprobs: schema.PackLogprobs(make([]float32, 300)),
	}
	var waited time.Duration
	for b.Loop() {
		start := time.Now()
		c.CallBegan(7, &call)
		waited += time.Since(start)
		c.CallEnded(7, gate.CallEnd{Gen: "g", Took: time.Second, Reply: &reply})
		c.Wait()
	}
	b.ReportMetric(float64(waited.Nanoseconds())/float64(b.N), "wait-ns")
}
