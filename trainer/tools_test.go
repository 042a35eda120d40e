package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestAToolIsRunOnceHoweverOftenItsWorkerAsks: a worker that asks again, for
// example after an outage, attaches to the run in progress or gets its result.
func TestAToolIsRunOnceHoweverOftenItsWorkerAsks(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	begun, release := make(chan struct{}), make(chan struct{})
	b := newBench(t, func(c *trainer.Config) {
		c.Tools = map[string]trainer.Tool{
			"slow": func(_ context.Context, c *trainer.ToolCall) (string, error) {
				if runs.Add(1) == 1 {
					close(begun)
				}
				<-release
				return string(c.Arguments) + " of " + string(c.Rollout), nil
			},
			"bad": func(context.Context, *trainer.ToolCall) (string, error) { return "", errors.New("no such file") },
		}
	})
	ask := func(n int, name string) (schema.ToolResult, error) {
		c := schema.ToolCall{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: n}.String(), Name: name, Arguments: json.RawMessage(`{"a":1}`)}
		return b.calls.Caller(harness.Request("alpha-1").WithDefaults(), nil).Tool(t.Context(), c)
	}
	var all sync.WaitGroup
	for i := range 3 {
		if i == 1 {
			<-begun
		}
		all.Go(func() {
			if r, err := ask(1, "slow"); i == 2 && (err != nil || r.Text != `{"a":1} of alpha-1` || r.IsError) {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
	close(release)
	// Only the newest request is answered; the others end with the test.
	if r, err := ask(1, "slow"); err != nil || r.Text != `{"a":1} of alpha-1` {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("the tool was run %d times", n)
	}
	if r, err := ask(2, "bad"); err != nil || !r.IsError || r.Text != "no such file" {
		t.Errorf("a tool that fails: %+v, %v", r, err)
	}
	var f *schema.Fault
	if _, err := ask(3, "other"); !errors.As(err, &f) || f.Status != 400 {
		t.Errorf("a tool that is not there: %v", err)
	}
	all.Wait()
}

func TestToolsThatSteerEnvironmentsAreRefused(t *testing.T) {
	t.Parallel()
	for name, tool := range map[string]schema.ToolSpec{
		"reset": {Name: "reset"}, "step": {Name: "step"}, "state": {Name: "state"}, "close": {Name: "close"},
		"no name": {}, "a list": {Name: "x", Parameters: json.RawMessage(`[]`)}, "no object": {Name: "x", Parameters: json.RawMessage(`{"type":"string"}`)},
	} {
		r := harness.Request("alpha-1")
		r.Agent.Name, r.Agent.Tools = "pi", []schema.ToolSpec{tool}
		if err := schema.Validate(&r); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	r := harness.Request("alpha-1")
	r.Agent.Name, r.Agent.Tools, r.Agent.MCP = "pi", []schema.ToolSpec{{Name: "search"}}, []schema.MCPServer{{Name: schema.ToolServer, Command: []string{"x"}}}
	if err := schema.Validate(&r); err == nil {
		t.Error("a server that takes the place of the trainer's was accepted")
	}
}
