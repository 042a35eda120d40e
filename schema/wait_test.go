package schema_test

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestAWaitIsDescribedInWords(t *testing.T) {
	for want, w := range map[string]schema.WaitEvent{
		"waits for upstream lab (call 3), 4s: upstream lab says 503": {For: schema.WaitUpstream, Name: "lab", Call: 3, MS: 4200, Fault: &schema.Fault{Code: "upstream", Message: "upstream lab says 503"}},
		"no longer waits for a trainer (call 1), 2s":                 {For: schema.WaitTrainer, Call: 1, MS: 2000, Ended: true},
		"waits for a worker: 2 workers, no slot is free":             {For: schema.WaitWorker, Note: "2 workers, no slot is free"},
	} {
		if got := w.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	e := &schema.Event{V: 1, Type: schema.EventWait, Rollout: "alpha-1", Wait: &schema.WaitEvent{For: "Godot"}}
	if err := schema.Validate(e); err == nil || !strings.Contains(err.Error(), "wait.for") {
		t.Errorf("got %v", err)
	}
}
