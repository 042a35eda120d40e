package machines

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func lineOf(t *testing.T) *line {
	t.Helper()
	local, other, err := pair()
	harness.Must(t, err)
	t.Cleanup(func() { _ = local.Close(); other.Close() })
	return newLine(local, DefaultTiming(), nil)
}

// TestCopiesDoNotFillASlowConnection: each message takes a second, longer than the first
// wait for an acknowledgement, and nothing is lost. The line sends few bytes twice.
func TestCopiesDoNotFillASlowConnection(t *testing.T) {
	const messageTime = time.Second
	l := lineOf(t)
	l.unacked, l.credit = make([]byte, window), 2*window
	now := time.Now()
	var way []frame // to the other side; the first one arrives at due
	var due time.Time
	sent, got := 0, uint64(0)
	for steps := 0; got < window; steps++ {
		if steps > 10_000 {
			t.Fatalf("%d of %d bytes arrived", got, window)
		}
		messages, wait, end := l.step(now)
		if end != nil {
			t.Fatalf("the line ends: %+v", end)
		}
		for _, m := range messages {
			f, err := decode(m)
			harness.Must(t, err)
			if len(way) == 0 {
				due = now.Add(messageTime)
			}
			way, sent = append(way, f), sent+len(f.data)
		}
		if next := now.Add(wait); len(way) == 0 || next.Before(due) {
			now = next
			continue
		}
		now = due
		f := way[0]
		way, due = way[1:], now.Add(messageTime)
		if f.seq <= got {
			got = max(got, f.seq+uint64(len(f.data)))
		}
		l.heard = now
		l.acknowledge(frame{kind: kindData, ack: got}, now)
	}
	if sent > 3*window {
		t.Errorf("%d bytes were sent for %d", sent, window)
	}
}

// TestARefusedLineIsReset: the machine may have taken a repeated open after it refused
// the first one.
func TestARefusedLineIsReset(t *testing.T) {
	l := lineOf(t)
	l.open = []byte("{}")
	if messages, _, end := l.step(time.Now()); len(messages) != 1 || messages[0][0] != byte(kindOpen) || end != nil {
		t.Fatalf("the first step: %q, %+v", messages, end)
	}
	l.receive(frame{kind: kindReset, data: encodeEnd(schema.LineEnd{Reason: schema.LineFull})})
	if messages, _, end := l.step(time.Now()); len(messages) != 1 || messages[0][0] != byte(kindReset) || end == nil || end.Reason != schema.LineFull {
		t.Errorf("after the refusal: %q, %+v", messages, end)
	}
	l = lineOf(t)
	l.receive(frame{kind: kindReset, data: encodeEnd(schema.LineEnd{Reason: schema.LineClosed})})
	if messages, _, end := l.step(time.Now()); len(messages) != 0 || end == nil || end.Reason != schema.LineClosed {
		t.Errorf("after the other side's end: %q, %+v", messages, end)
	}
}

// TestALostLastAcknowledgementFreesTheSlot: the machine repeats its end to a client that
// has ended the line, and learns by the answer that the client has all.
func TestALostLastAcknowledgementFreesTheSlot(t *testing.T) {
	var answers [][]byte
	client := lineOf(t)
	client.out = func(b []byte) { answers = append(answers, b) }
	f := &Fleet{}
	f.lines.add("m1.x", client, 0)
	f.lines.remove("m1.x")
	machine := lineOf(t)
	machine.final, machine.theirs, machine.delivered = &schema.LineEnd{Status: 7}, &schema.LineEnd{Text: "bye"}, true
	messages, _, end := machine.step(time.Now())
	if len(messages) == 0 || end != nil {
		t.Fatalf("the machine sends %q, %+v", messages, end)
	}
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "x"), Data: messages[0]})
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "other"), Data: messages[0]})
	f.onUp(&nats.Msg{Subject: subjects.MachineUp("m1", "w1", "x"), Data: resetOf(schema.LineUnknown, "")})
	if len(answers) != 1 {
		t.Fatalf("the client answers %q", answers)
	}
	answer, err := decode(answers[0])
	harness.Must(t, err)
	machine.receive(answer)
	if _, _, end := machine.step(time.Now()); end == nil || end.Text != "bye" {
		t.Errorf("the end %+v", end)
	}
}
