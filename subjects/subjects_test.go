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

func TestConsumersAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range subjects.RequestFilters() {
		name := subjects.ConsumerOf(f)
		if seen[name] || strings.ContainsAny(name, ".*> ") {
			t.Errorf("%s: bad or repeated name %q", f, name)
		}
		seen[name] = true
	}
}
