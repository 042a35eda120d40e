package trainer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// A training loop: it answers the calls in the background, holds them while the
// weights change, and trains on the generations that reached an agent.
func Example() {
	ctx := context.Background()
	var mu sync.Mutex
	samples := map[string]trainer.Sample{} // by generation
	t, err := trainer.Dial(ctx, trainer.Config{URL: "nats://127.0.0.1:4222", Creds: "alpha.creds", Name: "alpha", Parallel: 64})
	if err != nil {
		log.Print(err)
		return
	}
	defer t.Close()
	go func() {
		_ = t.Serve(ctx, func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
			s := trainer.Sample{PromptIDs: []int32{1, 2}, CompletionIDs: []int32{3}, Logprobs: []float32{-0.1}, Version: "v1"}
			mu.Lock()
			samples[c.Gen] = s
			mu.Unlock()
			return trainer.NewReply(trainer.Message{Content: "hello"}, s)
		})
	}()
	if err := t.Submit(ctx, []schema.Request{ /* a group of one task */ }); err != nil {
		log.Print(err)
		return
	}
	err = t.Results(ctx, func(r schema.Result) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range r.Committed { // of no other generation
			_ = samples[c.Gen] // with r.Reward and r.Group, a row of the batch
		}
	})
	if err != nil {
		log.Print(err)
		return
	}
	t.Hold(trainer.Selection{}) // update the weights now
	t.Abort(trainer.Selection{})
	t.Resume()
}

func ExampleParseMessage() {
	m, err := trainer.ParseMessage(json.RawMessage(`{"role":"user","content":[{"type":"text","text":"Say "},{"type":"text","text":"hello."}]}`))
	fmt.Println(m.Role, m.Content, err)
	// Output: user Say hello. <nil>
}

func ExampleNewReply() {
	r, err := trainer.NewReply(
		trainer.Message{ToolCalls: []trainer.ToolUse{{ID: "c1", Name: "bash", Arguments: `{"command":"ls"}`}}},
		trainer.Sample{PromptIDs: []int32{5, 6}, CompletionIDs: []int32{7}, Logprobs: []float32{-0.5}, Version: "v2"},
	)
	fmt.Println(err, r.FinishReason, r.Usage.PromptTokens, r.CompletionIDs.Unpack(), r.Logprobs.Unpack(), r.Versions)
	fmt.Println(string(r.Message))
	// Output:
	// <nil> tool_calls 2 [7] [-0.5] [{v2 0 1}]
	// {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}}]}
}
