package machines

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestAnEndedLineAnswersALateMessage: the machine repeats its end to a client that has ended
// the line. The answer frees the machine's slot.
func TestAnEndedLineAnswersALateMessage(t *testing.T) {
	local, other, err := line.Pair()
	harness.Must(t, err)
	defer local.Close()
	defer other.Close()
	var answers [][]byte
	f := &Fleet{}
	f.lines.add("m1.x", opened{Line: line.New(local, line.DefaultTiming(), func(b []byte) { answers = append(answers, b) })}, 0)
	f.lines.remove("m1.x")
	end := line.Frame{Kind: line.KindEnd}.Encode()
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "x"), Data: end})
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "other"), Data: end})
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "x"), Data: line.ResetOf(schema.LineUnknown, "")})
	if len(answers) != 1 {
		t.Fatalf("the client answers %q", answers)
	}
	if answer, err := line.Decode(answers[0]); err != nil || answer.Kind != line.KindReset {
		t.Errorf("the answer %+v, %v", answer, err)
	}
}
