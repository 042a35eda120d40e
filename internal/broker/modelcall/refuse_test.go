package modelcall_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// frame is a frame of any content, also one that breaks the protocol.
type frame struct {
	header map[string]string
	body   []byte
}

// stranger is a trainer that answers the n-th request for a call with the frames
// of answer(n). The channel gets the worker's refusals.
func (b *bench) stranger(t *testing.T, answer func(n int) []frame) <-chan *nats.Msg {
	t.Helper()
	refusals := make(chan *nats.Msg, 16)
	var mu sync.Mutex
	asked := 0
	nc := b.nats.Raw(t, b.nats.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
	_, err := nc.Subscribe(subjects.CallsOf("alpha", ""), func(m *nats.Msg) {
		switch m.Header.Get(subjects.HeaderKind) {
		case subjects.KindReject:
			refusals <- m
			return
		case "":
		default:
			return
		}
		mu.Lock()
		asked++
		frames := answer(asked)
		mu.Unlock()
		for _, f := range frames {
			h := nats.Header{}
			for name, value := range f.header {
				h.Set(name, value)
			}
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h, Data: f.body})
		}
	})
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	return refusals
}

func headers(kind schema.FrameKind, gen, seq string, more ...string) map[string]string {
	h := map[string]string{subjects.HeaderKind: string(kind)}
	if gen != "" {
		h[subjects.HeaderGen] = gen
	}
	if seq != "" {
		h[subjects.HeaderSeq] = seq
	}
	for i := 0; i+1 < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

func encoded(t *testing.T, m schema.Message) []byte {
	t.Helper()
	data, err := schema.Encode(m)
	harness.Must(t, err)
	return data
}

// TestAnAnswerThatIsRefusedIsReportedToItsTrainerOnce has an answer for each rule of
// the protocol for frames. The trainer gets one refusal with a fault that names
// the field, and the same call again.
func TestAnAnswerThatIsRefusedIsReportedToItsTrainerOnce(t *testing.T) {
	t.Parallel()
	piece := &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a"}`)}
	good := encoded(t, done("ok"))
	of := func(v int) []byte {
		r := done("ok")
		r.V = v
		return encoded(t, r)
	}
	odd := &schema.Delta{V: 7, Delta: piece.Delta}
	delta, accept := encoded(t, piece), frame{headers(schema.FrameAccept, "bad", ""), nil}
	for _, c := range []struct {
		name, field string
		frames      []frame
	}{
		{"no version", "v: ", []frame{{headers(schema.FrameFinal, "bad", "0"), of(0)}}},
		{"another version", "v: ", []frame{accept, {headers(schema.FrameFinal, "bad", "0"), of(2)}}},
		{"another version of a delta", "v: ", []frame{accept, {headers(schema.FrameDelta, "bad", "0"), encoded(t, odd)}}},
		{"no generation", "Rl-Gen", []frame{{headers(schema.FrameFinal, "", "0"), good}}},
		{"a generation that is no name", "Rl-Gen", []frame{{headers(schema.FrameFinal, "a b", "0"), good}}},
		{"no sequence of a final", "Rl-Seq", []frame{{headers(schema.FrameFinal, "bad", ""), good}}},
		{"no sequence of a delta", "Rl-Seq", []frame{accept, {headers(schema.FrameDelta, "bad", ""), delta}}},
		{"a negative sequence", "Rl-Seq", []frame{{headers(schema.FrameDelta, "bad", "-1"), delta}}},
		{"too few deltas in a final", "Rl-Seq", []frame{{headers(schema.FrameDelta, "bad", "0"), delta}, {headers(schema.FrameDelta, "bad", "1"), delta}, {headers(schema.FrameFinal, "bad", "1"), good}}},
		{"a reply without a message", "message", []frame{{headers(schema.FrameFinal, "bad", "0"), []byte("\x82\xa1v\x01\xadfinish_reason\xa4stop")}}},
		{"no msgpack", "", []frame{{headers(schema.FrameFinal, "bad", "0"), []byte("hello")}}},
		{"a fault that cannot be read", "", []frame{{headers(schema.FrameFault, "bad", ""), []byte("hello")}}},
		{"an encoding that is not known", "Rl-Encoding", []frame{{headers(schema.FrameFinal, "bad", "0", subjects.HeaderEncoding, "gzip"), good}}},
		{"no zstd", "Rl-Encoding", []frame{{headers(schema.FrameFinal, "bad", "0", subjects.HeaderEncoding, "zstd"), good}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			refusals := b.stranger(t, func(n int) []frame {
				if n == 1 {
					return c.frames
				}
				return []frame{{headers(schema.FrameFinal, "good", "0"), good}}
			})
			var waits []string
			r, err := testenv.Complete(t.Context(), b.caller(time.Minute), call(1), func(f schema.Frame) error {
				if f.Kind == schema.FrameAbsent && f.Fault != nil {
					waits = append(waits, f.Fault.Code+" "+f.Fault.Message)
				}
				return nil
			})
			if err != nil || !strings.Contains(string(r.Message), "ok") || len(waits) != 1 || !strings.HasPrefix(waits[0], schema.CodeBadAnswer) || !strings.Contains(waits[0], c.field) {
				t.Fatalf("got %s, %v, waits %q", r.Message, err, waits)
			}
			var f schema.Fault
			m := <-refusals
			if harness.Must(t, schema.Decode(m.Data, &f)); f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, c.field) {
				t.Fatalf("the trainer got %+v", f)
			}
			if key, _, ok := subjects.ParseCall(m.Subject); !ok || key.String() != call(1).Key {
				t.Fatalf("it got a refusal on %s", m.Subject)
			}
			if len(refusals) > 0 {
				t.Fatal("the trainer got two refusals")
			}
		})
	}
}

// TestATrainerThatRepeatsARefusedAnswer: the third refusal ends the call, so the
// rollout does not wait for ever. The trainer gets one refusal.
func TestATrainerThatRepeatsARefusedAnswer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	for _, tool := range []bool{false, true} {
		nc := b.nats.Raw(t, b.nats.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"))
		refused := 0
		sub, err := nc.Subscribe(map[bool]string{false: subjects.CallsOf("alpha", ""), true: subjects.ToolsOf("alpha", "")}[tool], func(m *nats.Msg) {
			if m.Header.Get(subjects.HeaderKind) == subjects.KindReject {
				refused++
				return
			}
			_ = nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{subjects.HeaderKind: {"final"}, subjects.HeaderGen: {"g1"}, subjects.HeaderSeq: {"0"}}, Data: []byte("x")})
		})
		harness.Must(t, err)
		harness.Must(t, nc.Flush())
		if tool {
			_, err = b.caller(time.Minute).Tool(t.Context(), schema.ToolCall{V: 1, Key: call(1).Key, Name: "a", Arguments: json.RawMessage(`{}`)})
		} else {
			err = b.caller(time.Minute).Complete(t.Context(), call(1), quiet)
		}
		harness.Must(t, sub.Unsubscribe())
		harness.Must(t, nc.Flush())
		var f *schema.Fault
		if !errors.As(err, &f) || f.Code != schema.CodeBadAnswer || refused != 1 {
			t.Fatalf("tool %v: got %v, refused %d times", tool, err, refused)
		}
	}
}

// TestAGapIsNamed: the worker asks for lost deltas again, and the event of the wait
// names them.
func TestAGapIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	piece := encoded(t, &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a"}`)})
	at := func(n int) frame { return frame{headers(schema.FrameDelta, "g", fmt.Sprint(n)), piece} }
	final := frame{headers(schema.FrameFinal, "g", "4"), encoded(t, done("aaaa"))}
	b.stranger(t, func(n int) []frame {
		switch n {
		case 1:
			return []frame{at(0), at(3)}
		case 2:
			return []frame{at(1), final}
		default:
			return []frame{at(2), at(3), final}
		}
	})
	var gaps []string
	deltas := 0
	err := b.caller(time.Minute).Complete(t.Context(), call(1), func(f schema.Frame) error {
		switch {
		case f.Kind == schema.FrameDelta:
			deltas++
		case f.Kind == schema.FrameAbsent && f.Fault != nil:
			gaps = append(gaps, f.Fault.Code+" "+f.Fault.Message)
		}
		return nil
	})
	if err != nil || deltas != 4 || len(gaps) != 2 || !strings.Contains(gaps[0], "gap Rl-Seq: 3 came after 1 deltas") || !strings.Contains(gaps[1], "Rl-Seq: 4 came after 2") {
		t.Fatalf("%d deltas, %v, gaps %q", deltas, err, gaps)
	}
}

// TestAGateMayRefuse: a gate refuses an answer that passed all checks of the
// broker.
func TestAGateMayRefuse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	refusals := b.stranger(t, func(n int) []frame {
		return []frame{{headers(schema.FrameFinal, fmt.Sprint("g", n), "0"), encoded(t, done(fmt.Sprint("answer ", n)))}}
	})
	r, err := testenv.Complete(t.Context(), b.caller(time.Minute), call(1), func(f schema.Frame) error {
		if f.Kind == schema.FrameFinal && strings.Contains(string(f.Reply.Message), "answer 1") {
			return schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "content: odd")
		}
		return nil
	})
	if m := <-refusals; err != nil || !strings.Contains(string(r.Message), "answer 2") || m.Header.Get(subjects.HeaderGen) != "g1" {
		t.Fatalf("got %s, %v, refused %q", r.Message, err, m.Header.Get(subjects.HeaderGen))
	}
}
