package worker_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestCallsAreRoutedByTag checks three routes: a title always gets the same
// text, a sub-agent gets another process of the trainer, and the agent itself
// gets the first one.
func TestCallsAreRoutedByTag(t *testing.T) {
	t.Parallel()
	answers := map[string]string{}
	agent := func(ctx context.Context, p *dummy.Proc) int {
		for _, text := range []string{"turn", "title", "sub"} {
			status, body := ask(ctx, p, text)
			if status != http.StatusOK {
				return 1
			}
			answers[text] = body
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), func(c *worker.Config) {
		for i := range c.Agents {
			if c.Agents[i].Name == "command" {
				c.Agents[i].Tag = func(_ http.Header, c *schema.Call) string {
					for text, tag := range map[string]string{"title": schema.TagAux, "sub": schema.TagSubagent} {
						if strings.Contains(string(c.Messages[0]), text) {
							return tag
						}
					}
					return schema.TagAgent
				}
			}
		}
	})
	said := func(text string) func(context.Context, *schema.Call) (*schema.Reply, error) {
		return func(context.Context, *schema.Call) (*schema.Reply, error) {
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"` + text + `"}`), FinishReason: "stop"}, nil
		}
	}
	b.trainer.Close()
	for shard, text := range map[string]string{"0": "policy", "7": "helper"} {
		tr, err := trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", Shard: shard, AnswerAll: true, Log: zerolog.Nop()})
		if err != nil {
			t.Fatal(err)
		}
		b.trainer = tr
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = tr.Serve(context.WithoutCancel(t.Context()), trainer.Whole(said(text)))
		}()
		t.Cleanup(func() { tr.Close(); <-served })
	}
	r := request("alpha-1")
	r.Shard = schema.DefaultShard
	r.Gate.Routes = schema.SortedMap[schema.Route]{schema.TagAux: {Reply: "A title"}, schema.TagSubagent: {Shard: "7"}}
	res := b.result(t, r)
	for text, want := range map[string]string{"turn": `"policy"`, "title": `"A title"`, "sub": `"helper"`} {
		if !strings.Contains(answers[text], want) {
			t.Errorf("%s was answered with %s, want %s", text, answers[text], want)
		}
	}
	for tag, n := range map[string]int{schema.TagAgent: 1, schema.TagAux: 1, schema.TagSubagent: 1} {
		if res.Calls[tag].Count != n {
			t.Errorf("calls %+v", res.Calls)
		}
	}
	for _, c := range res.Committed {
		if want := map[string]string{schema.TagAgent: "0", schema.TagAux: "0", schema.TagSubagent: "7"}[c.Tag]; c.Shard != want {
			t.Errorf("call of tag %s is with shard %s, want %s", c.Tag, c.Shard, want)
		}
	}
	for _, bad := range []schema.Route{{}, {Shard: "a b"}, {Shard: "1", Reply: "x"}} {
		q := request("alpha-2")
		q.Gate.Routes = schema.SortedMap[schema.Route]{schema.TagAux: bad}
		if err := b.trainer.Submit(t.Context(), []schema.Request{q}); err == nil || !strings.Contains(err.Error(), "gate.routes.aux") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
