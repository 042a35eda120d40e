package trajectory_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// The Python client is tested with the same vectors.
func TestEndingOf(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/endings.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		About  string
		Status schema.Status
		Fault  *schema.Fault
		Calls  [][2]string // role and finish reason
		Ending trajectory.Ending
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("there are no vectors")
	}
	for _, v := range vectors {
		t.Run(v.About, func(t *testing.T) {
			t.Parallel()
			var calls []*trajectory.Call
			for _, c := range v.Calls {
				calls = append(calls, &trajectory.Call{Role: c[0], FinishReason: c[1]})
			}
			if got := trajectory.EndingOf(&schema.Result{Status: v.Status, Fault: v.Fault}, calls); got != v.Ending {
				t.Errorf("got %s, want %s", got, v.Ending)
			}
		})
	}
}

func TestATraceOfVerifiersHasTheConditionOfItsEnd(t *testing.T) {
	t.Parallel()
	of := func(code string) *schema.Result {
		return &schema.Result{Status: schema.StatusDone, Fault: schema.Faultf("agent", code, schema.WhoAgent, "-")}
	}
	tests := map[string]struct {
		result  *schema.Result
		finish  string
		stop    string
		ok      bool
		timeout bool
	}{
		"whole":        {&schema.Result{Status: schema.StatusDone}, "stop", "agent_completed", true, false},
		"answer cut":   {&schema.Result{Status: schema.StatusDone}, "length", "max_output_tokens", true, false},
		"context":      {of(schema.CodeContext), "stop", "max_total_tokens", true, false},
		"calls":        {of(schema.CodeCallCap), "stop", "max_turns", true, false},
		"tokens":       {of(schema.CodeTokenCap), "stop", "max_output_tokens", true, false},
		"time":         {of(schema.CodeTimeout), "stop", "agent_timeout", true, true},
		"agent failed": {of(schema.CodeExit), "stop", schema.CodeExit, false, false},
		"cancelled":    {&schema.Result{Status: schema.StatusCancelled, Fault: &schema.Fault{Code: schema.CodeCancelled}}, "stop", "cancelled", false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rollout := &trajectory.Rollout{Calls: []*trajectory.Call{{Number: 1, Role: schema.TagAgent, FinishReason: tt.finish}}}
			trace := trajectory.ToVerifiers(rollout, tt.result)
			if trace.Stop != tt.stop || trace.OK != tt.ok || trace.Timeout != tt.timeout || len(trace.Errors) > 0 == tt.ok {
				t.Errorf("stop_condition %q, ok %t, is_timeout %t, errors %v", trace.Stop, trace.OK, trace.Timeout, trace.Errors)
			}
		})
	}
}
