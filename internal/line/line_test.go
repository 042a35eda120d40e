package line

import (
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

func lineOf(t *testing.T) *Line {
	t.Helper()
	local, other, err := Pair()
	harness.Must(t, err)
	t.Cleanup(func() { _ = local.Close(); other.Close() })
	return New(local, DefaultTiming(), nil)
}

// TestCopiesDoNotFillASlowConnection: each message takes a second, longer than the first
// wait for an acknowledgement, and nothing is lost. The line sends few bytes twice.
func TestCopiesDoNotFillASlowConnection(t *testing.T) {
	const messageTime = time.Second
	l := lineOf(t)
	l.unacked, l.credit = make([]byte, window), 2*window
	now := time.Now()
	var way []Frame // to the other side; the first one arrives at due
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
			f, err := Decode(m)
			harness.Must(t, err)
			if len(way) == 0 {
				due = now.Add(messageTime)
			}
			way, sent = append(way, f), sent+len(f.Data)
		}
		if next := now.Add(wait); len(way) == 0 || next.Before(due) {
			now = next
			continue
		}
		now = due
		f := way[0]
		way, due = way[1:], now.Add(messageTime)
		if f.Seq <= got {
			got = max(got, f.Seq+uint64(len(f.Data)))
		}
		l.heard = now
		l.acknowledge(Frame{Kind: KindData, Ack: got}, now)
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
	if messages, _, end := l.step(time.Now()); len(messages) != 1 || messages[0][0] != byte(KindOpen) || end != nil {
		t.Fatalf("the first step: %q, %+v", messages, end)
	}
	l.Receive(Frame{Kind: KindReset, Data: encodeEnd(schema.LineEnd{Reason: schema.LineFull})})
	if messages, _, end := l.step(time.Now()); len(messages) != 1 || messages[0][0] != byte(KindReset) || end == nil || end.Reason != schema.LineFull {
		t.Errorf("after the refusal: %q, %+v", messages, end)
	}
	l = lineOf(t)
	l.Receive(Frame{Kind: KindReset, Data: encodeEnd(schema.LineEnd{Reason: schema.LineClosed})})
	if messages, _, end := l.step(time.Now()); len(messages) != 0 || end == nil || end.Reason != schema.LineClosed {
		t.Errorf("after the other side's end: %q, %+v", messages, end)
	}
}

// TestALostLastAcknowledgementEndsTheLine: one side repeats its end to another one that has
// ended, and learns by the answer that the other side has all.
func TestALostLastAcknowledgementEndsTheLine(t *testing.T) {
	l := lineOf(t)
	l.final, l.theirs, l.delivered = &schema.LineEnd{Status: 7}, &schema.LineEnd{Text: "bye"}, true
	if messages, _, end := l.step(time.Now()); len(messages) != 1 || messages[0][0] != byte(KindEnd) || end != nil {
		t.Fatalf("it sends %q, %+v", messages, end)
	}
	answer, err := Decode(ResetOf(schema.LineUnknown, ""))
	harness.Must(t, err)
	l.Receive(answer)
	if _, _, end := l.step(time.Now()); end == nil || end.Text != "bye" {
		t.Errorf("the end %+v", end)
	}
}
