package gate

import (
	"errors"
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestHeard checks the events of a call's wait for a series of frames.
func TestHeard(t *testing.T) {
	bad := &schema.Fault{Code: schema.CodeBadAnswer, Message: "logprobs: 1 values"}
	busy := &schema.Fault{Code: "upstream", Message: "busy"}
	x := &exchange{number: 3}
	for i, step := range []struct {
		frame schema.Frame
		want  []string
		over  bool
	}{
		{schema.Frame{Kind: schema.FrameAccept}, nil, false},
		{schema.Frame{Kind: schema.FrameAbsent}, []string{"waits for a trainer (call 3)"}, false},
		{schema.Frame{Kind: schema.FrameAbsent}, nil, false}, // already reported
		{schema.Frame{Kind: schema.FrameAbsent, Fault: busy}, []string{"waits for a trainer (call 3): busy"}, false},
		{schema.Frame{Kind: schema.FrameAccept}, nil, false}, // only a repeated request
		{schema.Frame{Kind: schema.FrameBeat, Held: true}, []string{"no longer waits for a trainer (call 3)", "waits for the trainer to resume it (call 3)"}, false},
		{schema.Frame{Kind: schema.FrameAccept}, []string{"no longer waits for the trainer to resume it (call 3)"}, false},
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: bad}, []string{"waits for upstream lab (call 3): logprobs: 1 values"}, false},
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: bad}, nil, false},
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: busy}, []string{"waits for upstream lab (call 3): busy"}, false}, // the count starts again
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: bad}, []string{"waits for upstream lab (call 3): logprobs: 1 values"}, false},
		{schema.Frame{Kind: schema.FrameAccept}, nil, false},
		{schema.Frame{Kind: schema.FrameBeat}, []string{"no longer waits for upstream lab (call 3)"}, false}, // a long answer is not a good one yet
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: bad}, []string{"waits for upstream lab (call 3): logprobs: 1 values"}, false},
		{schema.Frame{Kind: schema.FrameAbsent, Upstream: "lab", Fault: bad}, nil, true},
	} {
		events, err := x.waitEvents(step.frame)
		var f *schema.Fault
		if errors.As(err, &f) != step.over || step.over && f.Code != schema.CodeBadAnswer {
			t.Errorf("step %d: %v", i, err)
		}
		if len(events) != len(step.want) {
			t.Fatalf("step %d: reported %+v, want %q", i, events, step.want)
		}
		for n, w := range events {
			if w.String() != step.want[n] {
				t.Errorf("step %d: reported %q, want %q", i, w.String(), step.want[n])
			}
		}
	}
}
