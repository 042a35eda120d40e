package playback_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/playback"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

func pack(t *testing.T, lines string) *bytes.Reader {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write([]byte(lines)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(out.Bytes())
}

const recorded = `{"call":1,"request":{"tag":"agent","messages":[{"role":"user","content":"go"}]}}
{"call":2,"request":{"tag":"aux","messages":[{"role":"user","content":"A title"}]}}
{"call":2,"reply":{"message":{"role":"assistant","content":"T"},"finish_reason":"stop"}}
{"call":1,"reply":{"message":{"role":"assistant","content":"A"},"finish_reason":"stop","prompt_ids":[1,2],"completion_ids":[3],"logprobs":[-1]}}
{"call":3,"request":{"tag":"agent","base":1,"keep":1,"messages":[{"role":"assistant","content":"A"},{"role":"tool","tool_call_id":"c","content":"one\ntwo\nthree"}]}}
{"call":3,"reply":{"message":{"role":"assistant","content":"B"},"finish_reason":"stop"}}
{"call":4,"request":{"tag":"agent","base":3,"keep":3,"messages":[{"role":"user","content":"more"}]}}
{"call":4,"fault":{"code":"call_cap","message":"enough","status":429}}
{"call":5,"request":{"tag":"agent","base":3,"keep":3,"messages":[{"role":"user","content":"never answered"}]}}
`

func load(t *testing.T) *playback.Recording {
	t.Helper()
	r, err := playback.Load(pack(t, recorded))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(t *testing.T, r *playback.Recording, key, tag string, messages ...string) (string, *schema.Reply, *schema.Fault) {
	t.Helper()
	c := &schema.Call{Key: key, Tag: tag}
	for _, m := range messages {
		c.Messages = append(c.Messages, json.RawMessage(m))
	}
	reply, err := r.Answer(t.Context(), c)
	var f *schema.Fault
	if err != nil {
		if !errors.As(err, &f) {
			t.Fatal(err)
		}
		return "", nil, f
	}
	var m struct{ Content string }
	if err := json.Unmarshal(reply.Message, &m); err != nil {
		t.Fatal(err)
	}
	return m.Content, reply, nil
}

const (
	first  = `{"content":"go","role":"user"}` // the same message in another order
	answer = `{"role":"assistant","content":"A"}`
	tool   = `{"role":"tool","tool_call_id":"c","content":"one\ntwo\nthree"}`
	more   = `{"role":"user","content":"more"}`
)

func TestTheSameCallsGetTheSameAnswers(t *testing.T) {
	r := load(t)
	if said, _, _ := ask(t, r, "beta-1/1/1", "aux", `{"role":"user","content":"A title"}`); said != "T" {
		t.Errorf("the title is %q", said) // calls may come in another order
	}
	for range 2 { // a call that is asked again gets the same answer
		if said, q, _ := ask(t, r, "beta-1/1/2", "agent", first); said != "A" || q.PromptIDs.Len() != 2 || q.Logprobs.Len() != 1 {
			t.Errorf("got %q, %+v", said, q)
		}
	}
	if said, _, _ := ask(t, r, "beta-1/1/3", "agent", first, answer, tool); said != "B" {
		t.Errorf("got %q", said)
	}
	if _, _, f := ask(t, r, "beta-1/1/4", "agent", first, answer, tool, more); f == nil || f.Status != 429 {
		t.Errorf("got %v", f)
	}
	if p := r.Reports(); len(p) != 1 || !p[0].Same() || p[0].Asked != 4 || p[0].Recorded != 4 {
		t.Errorf("got %+v", p)
	}
}

func TestTheFirstDivergenceIsReported(t *testing.T) {
	r := load(t)
	ask(t, r, "beta-1/1/1", "agent", first)
	changed := `{"role":"tool","tool_call_id":"c","content":"one\n2\nthree"}`
	if said, _, _ := ask(t, r, "beta-1/1/2", "agent", first, answer, changed); said != "B" {
		t.Errorf("the agent cannot go on: %q", said)
	}
	if _, _, f := ask(t, r, "beta-1/1/3", "agent", first, answer, changed, more); f == nil || f.Status != 429 {
		t.Errorf("got %v", f)
	}
	if _, _, f := ask(t, r, "beta-1/1/4", "agent", first, answer, changed, more, more); f == nil || !strings.Contains(f.Message, "no call left") {
		t.Errorf("got %v", f)
	}
	p := r.Reports()[0]
	if p.Same() || p.Others != 2 || len(p.Missing) != 1 || p.Missing[0] != 2 {
		t.Errorf("got %+v", p)
	}
	d := p.Diverged
	if d == nil || d.Call != 2 || d.Recorded != 3 || d.Message != 2 || !strings.Contains(d.Diff, "- two\n+ 2\n") || !strings.Contains(d.Diff, "three") {
		t.Errorf("got %+v", d)
	}
	// A new attempt begins again.
	if said, _, _ := ask(t, r, "beta-1/2/1", "agent", first); said != "A" {
		t.Errorf("got %q", said)
	}
	if p := r.Reports()[0]; p.Diverged != nil || p.Asked != 1 {
		t.Errorf("got %+v", p)
	}
}

func TestTranscriptsThatCannotBePlayed(t *testing.T) {
	if _, err := playback.Load(pack(t, `{"tool":"x"}`+"\n")); !errors.Is(err, trajectory.ErrNoCalls) {
		t.Errorf("got %v", err)
	}
	var bad *trajectory.TranscriptError
	if _, err := playback.Load(pack(t, `{"call":1,"request":{"base":7,"keep":1}}`+"\n")); !errors.As(err, &bad) || !strings.Contains(err.Error(), "call 7") {
		t.Errorf("got %v", err)
	}
	if _, err := playback.Load(strings.NewReader("{}")); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
}
