package operate_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/schema"
)

func TestActivity(t *testing.T) {
	now := time.UnixMilli(1_000_000_000)
	a := operate.NewActivity()
	event := func(id string, ago time.Duration, e schema.Event) {
		e.Rollout, e.At = schema.ID(id), now.Add(-ago).UnixMilli()
		a.Event(&e)
	}
	phase := func(name string, ended bool) schema.Event {
		return schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: name, Ended: ended}}
	}
	event("a-1", time.Hour, phase("agent", false))
	event("a-2", 5*time.Second, phase("step/one/agent", false))
	event("a-3", 5*time.Second, phase("setup[0]", false))
	event("a-3", 4*time.Second, phase("setup[0]", true)) // the next phase begins soon
	event("a-4", 5*time.Second, phase("verify", false))
	event("a-4", time.Second, schema.Event{Type: schema.EventResult, Result: &schema.Result{}})
	event("a-5", 5*time.Minute, phase("agent", false)) // no worker announces it any more
	call := func(ago time.Duration, e schema.LLMEvent) {
		event("a-2", ago, schema.Event{Type: schema.EventLLM, LLM: &e})
	}
	for i := range 100 {
		call(30*time.Second, schema.LLMEvent{MS: int64(i+1) * 1000, Reply: &schema.Reply{}})
	}
	call(2*time.Minute, schema.LLMEvent{MS: 1_000_000, Reply: &schema.Reply{}})
	call(time.Second, schema.LLMEvent{Call: &schema.Call{}})
	call(time.Second, schema.LLMEvent{Note: "the call is too large to show"})
	call(time.Second, schema.LLMEvent{MS: 90_000, Fault: &schema.Fault{}})
	sum := a.Sum(now, []schema.Presence{{Running: []schema.ID{"a-1", "a-2"}}, {Running: []schema.ID{"a-9"}}})
	if want := map[string]int{"agent": 2, "setup": 1, operate.PhaseUnknown: 1}; !reflect.DeepEqual(sum.Phases, want) {
		t.Errorf("%v", sum.Phases)
	}
	if c := sum.Calls; c.Ended != 101 || c.Failed != 1 || fmt.Sprintf("%.3f", c.PerSecond) != "1.683" || *c.P50 != 50 || *c.P99 != 99 {
		t.Errorf("%+v", c)
	}
	if sum := operate.NewActivity().Sum(now, nil); sum.Calls.P50 != nil || sum.Calls.PerSecond != 0 || sum.Phases == nil {
		t.Errorf("%+v", sum)
	}
}
