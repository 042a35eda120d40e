package subjects_test

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

func TestCallRoundTrip(t *testing.T) {
	k := schema.Key{Rollout: "alpha-7", Attempt: 2, Call: 31}
	s := subjects.Call(k, "s1")
	if s != "rollout.alpha-7.llm.alpha.s1.2.31" {
		t.Fatalf("got %s", s)
	}
	got, shard, ok := subjects.ParseCall(s)
	if !ok || got != k || shard != "s1" {
		t.Fatalf("got %v %q %v", got, shard, ok)
	}
	for _, bad := range []string{
		"", "rollout.alpha-7.llm.beta.s1.2.31", "rollout.alpha-7.llm.alpha.s1.0.31", "rollout.alpha-7.llm.alpha.s1.2.031",
		"rollout.alpha-7.llm.alpha.s1.2", "rollout.alpha-7.tool.alpha.s1.2.31", "rollout.alpha.llm.alpha.s1.2.31",
	} {
		if _, _, ok := subjects.ParseCall(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	for lane := range subjects.Lanes {
		if tid, ok := subjects.ParseRequest(subjects.Request(lane, "alpha")); !ok || tid != "alpha" {
			t.Errorf("lane %d: got %q %v", lane, tid, ok)
		}
	}
	if tid, ok := subjects.ParseRequest(subjects.Requests); !ok || tid != "" {
		t.Errorf("plain lane: got %q %v", tid, ok)
	}
	for _, bad := range []string{"rollout.requests.p4.alpha", "rollout.requests.p0", "rollout.requests.p0.requests", "rollout.requests.p0.A", "x"} {
		if _, ok := subjects.ParseRequest(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestGateInboxBelongsToItsTrainer(t *testing.T) {
	in := subjects.GateInbox("alpha", "w1", "i1", [16]byte{15: 255})
	if !subjects.IsGateInbox(in, "alpha") || subjects.InboxToken(in) != "000000000000000000000000000000ff" {
		t.Fatalf("own inbox %s was refused", in)
	}
	for _, bad := range []string{"rollout.alpha-7.result", subjects.GateInbox("beta", "w1", "i1", [16]byte{}), "_INBOX.gate.alpha.w1.i1.>", "_INBOX.gate.alpha.w1"} {
		if subjects.IsGateInbox(bad, "alpha") {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestCancelRoundTrip(t *testing.T) {
	if tid, ok := subjects.ParseTrainerCancel(subjects.TrainerCancel("alpha")); !ok || tid != "alpha" {
		t.Fatalf("got %q %v", tid, ok)
	}
}

func TestParkedRoundTrip(t *testing.T) {
	for _, class := range []string{subjects.ClassDelay, "0123456789abcdef0123"} {
		subject := subjects.Parked(3, class, "alpha-1")
		if lane, got, ok := subjects.ParseParked(subject); !ok || lane != 3 || got != class {
			t.Errorf("%s: got lane %d, class %q, %v", subject, lane, got, ok)
		}
	}
	for _, subject := range []string{subjects.Request(1, "alpha"), "parked.alpha.p4.delay.alpha-1", "parked.alpha.p1.delay", "held.alpha.p1.delay.alpha-1"} {
		if _, _, ok := subjects.ParseParked(subject); ok {
			t.Errorf("%s was read", subject)
		}
	}
}

func TestConsumersAreDistinct(t *testing.T) {
	seen := map[string]bool{subjects.ConsumerPlain: true}
	for lane := range subjects.Lanes {
		name := subjects.ConsumerOf(lane)
		if seen[name] || strings.ContainsAny(name, ".*> ") {
			t.Errorf("lane %d: bad or repeated name %q", lane, name)
		}
		seen[name] = true
	}
}

func TestEveryStreamAndSubjectOfATrainerNamesIt(t *testing.T) {
	const tid = "al_pha9"
	id := schema.ID(tid + "-7_x-y")
	for _, stream := range subjects.StreamsOf(tid) {
		if got, ok := subjects.TrainerOfStream(stream); !ok || got != tid {
			t.Errorf("stream %s: got %q %v", stream, got, ok)
		}
	}
	for _, subject := range []string{
		subjects.Request(3, tid), subjects.RequestCopy(id), subjects.State(id), subjects.Result(id),
		subjects.ObjectChunks(subjects.TasksBucket(tid), "x"), subjects.ObjectMeta(subjects.ArtifactsBucket(tid), "x"),
	} {
		if got, ok := subjects.TrainerOf(subject); !ok || got != tid {
			t.Errorf("subject %s: got %q %v", subject, got, ok)
		}
	}
	for _, stream := range []string{subjects.StreamPlain, subjects.StreamEvents, subjects.StreamDead, subjects.StreamLeases, "REQ_", "REQ_Alpha", "OBJ_other_alpha", "xREC_alpha"} {
		if got, ok := subjects.TrainerOfStream(stream); ok {
			t.Errorf("stream %s: got %q", stream, got)
		}
	}
	for _, subject := range []string{subjects.Requests, subjects.Event(id, schema.EventLog), subjects.Dead("record", subjects.Records(tid)), subjects.Lease("w", "i"), "record.A.x.state", ""} {
		if got, ok := subjects.TrainerOf(subject); ok {
			t.Errorf("subject %s: got %q", subject, got)
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	if got := subjects.State("alpha-7"); got != "record.alpha.alpha-7.state" {
		t.Fatalf("got %s", got)
	}
	for _, subject := range []string{subjects.RequestCopy("alpha-7"), subjects.State("alpha-7"), subjects.Result("alpha-7")} {
		if id, ok := subjects.ParseRecord(subject); !ok || id != "alpha-7" {
			t.Errorf("%s: got %q %v", subject, id, ok)
		}
	}
	for _, bad := range []string{"record.beta.alpha-7.state", "record.alpha.alpha.state", "record.alpha.alpha-7", "rollout.alpha.alpha-7.state"} {
		if _, ok := subjects.ParseRecord(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestOpenRoundTrip(t *testing.T) {
	if tid, ok := subjects.ParseTrainerOpen(subjects.TrainerOpen("alpha")); !ok || tid != "alpha" {
		t.Fatalf("got %q %v", tid, ok)
	}
	for _, bad := range []string{"trainer.A.open", "trainer.requests.open", "trainer.alpha.cancel", "trainer.open"} {
		if _, ok := subjects.ParseTrainerOpen(bad); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestTheQueueOfALane(t *testing.T) {
	if got := subjects.QueueOf(subjects.Request(1, "alpha")); got != subjects.Queue("alpha") {
		t.Errorf("got %s", got)
	}
	if got := subjects.QueueOf(subjects.Requests); got != subjects.StreamPlain {
		t.Errorf("got %s", got)
	}
}
