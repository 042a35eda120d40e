package trajectory_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// talk is a conversation of an agent with a model behind a chat template. The
// template writes a message as tokens; the agent and the template change earlier
// messages as real ones do.
type talk struct {
	*rand.Rand
	strip    bool // the template leaves out the thinking of earlier answers
	rewrite  bool // the agent writes arguments of tools anew
	reorder  bool // and other members of them first
	truncate bool // the agent cuts old results of tools, or leaves out old messages
	compact  bool // it goes on with a summary
	turns    []turnOf
	lines    []json.RawMessage
	sampled  int
	calls    int
}

// turnOf is a message and its tokens in a prompt.
type turnOf struct {
	message json.RawMessage
	begin   int32 // the token before it
	ids     []int32
	thought int // the first ids are its thinking
	said    int // those behind are its text, and the rest are arguments
}

func newTalk(seed uint64) *talk {
	r := rand.New(rand.NewPCG(seed, 7))
	odds := func() bool { return r.IntN(2) == 0 }
	return &talk{Rand: r, strip: odds(), rewrite: odds(), reorder: odds(), truncate: odds(), compact: odds()}
}

func (t *talk) ids(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = t.Int32N(40)
	}
	return out
}

func (t *talk) prompt() (messages []json.RawMessage, ids []int32) {
	for _, turn := range t.turns {
		messages = append(messages, turn.message)
		ids = append(append(ids, turn.begin), turn.ids...)
	}
	return messages, append(ids, 2)
}

func (t *talk) other(role, text string) {
	message, _ := json.Marshal(map[string]string{"role": role, "content": text})
	t.turns = append(t.turns, turnOf{message: message, begin: 1, ids: t.ids(1 + t.IntN(3))})
}

// call is a call, and the agent's next messages.
func (t *talk) call() {
	t.calls++
	n := t.calls
	messages, prompt := t.prompt()
	thought, said, arguments := t.ids(t.IntN(4)), t.ids(t.IntN(3)), t.ids(1+t.IntN(4))
	completion := slices.Concat(thought, said, arguments)
	logprobs := make([]float32, len(completion))
	for i := range logprobs {
		logprobs[i] = -t.Float32()
	}
	message := json.RawMessage(fmt.Sprintf(`{"role":"assistant","content":"t%d","tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{\"a\": %d}"}}]}`, n, n, n))
	t.line(&schema.TranscriptLine{Call: n, Request: &schema.Call{V: 1, Key: fmt.Sprintf("alpha-01/1/%d", n), Tag: schema.TagAgent, Messages: messages}})
	t.line(&schema.TranscriptLine{Call: n, Gen: "g", Reply: &schema.Reply{V: 1, Message: message, FinishReason: "tool_calls",
		PromptIDs: schema.PackTokenIDs(prompt), CompletionIDs: schema.PackTokenIDs(completion), Logprobs: schema.PackLogprobs(logprobs)}})
	t.sampled += len(completion)
	t.turns = append(t.turns, turnOf{message, 2, completion, len(thought), len(said)})
	t.other("tool", fmt.Sprint("result ", n))
	t.change()
}

func (t *talk) line(l *schema.TranscriptLine) {
	data, _ := json.Marshal(l) // it always encodes
	t.lines = append(t.lines, data)
}

// change changes the conversation as the template and the agent do.
func (t *talk) change() {
	last := &t.turns[len(t.turns)-2]
	if t.strip {
		last.ids, last.thought = last.ids[last.thought:], 0
	}
	from := last.thought + last.said
	if t.rewrite && t.IntN(2) == 0 {
		last.ids = append(slices.Clone(last.ids[:from]), t.ids(t.IntN(4))...)
		last.message = json.RawMessage(fmt.Sprintf(`{"role":"assistant","content":"t%d","tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{\"a\":%d}"}}]}`, t.calls, t.calls, t.calls))
	}
	if t.reorder && t.IntN(2) == 0 {
		last.ids = slices.Clone(last.ids)
		slices.Reverse(last.ids[min(from, len(last.ids)):])
	}
	if i := t.IntN(len(t.turns)); t.truncate && t.IntN(4) == 0 {
		if t.IntN(2) == 0 {
			t.turns[i].ids = t.turns[i].ids[:len(t.turns[i].ids)/2]
			t.turns[i].thought, t.turns[i].said = 0, 0
		} else if i > 0 {
			t.turns = slices.Delete(slices.Clone(t.turns), 1, i+1)
		}
		t.other("user", "go on")
	}
	if t.compact && t.IntN(6) == 0 {
		t.turns = slices.Clone(t.turns[:1])
		t.other("user", fmt.Sprint("summary ", t.calls))
	}
}

// TestEverySampledTokenIsTrainedOnce: with the default options, for all changes of template and
// agent to the conversation. With a bound, an answer loses no more than that, and every lost
// token is counted.
func TestEverySampledTokenIsTrainedOnce(t *testing.T) {
	joined, lost := 0, 0
	for seed := range uint64(400) {
		talk := newTalk(seed)
		talk.other("user", "go")
		for range 2 + talk.IntN(12) {
			talk.call()
		}
		for _, o := range []trajectory.Options{{}, {Merge: trajectory.MergeClean}, {Merge: trajectory.MergeFork}, {MaxLost: 3}} {
			v := vector{Options: o, Lines: talk.lines}
			v.fill(t)
			checkRows(t, &v)
			if got := v.Tokens; got.Sampled != talk.sampled || o.MaxLost == 0 && got.Trained != talk.sampled {
				t.Fatalf("seed %d, options %+v: %v; %d were sampled", seed, o, got, talk.sampled)
			}
			for _, c := range v.Calls {
				if c.Completion-c.TrainedOn > o.MaxLost {
					t.Errorf("seed %d, options %+v: call %d trains %d of %d tokens", seed, o, c.Number, c.TrainedOn, c.Completion)
				}
				lost += c.Completion - c.TrainedOn
			}
			joined += len(v.Calls) - len(v.Rows)
		}
	}
	if joined < 1000 || lost < 100 {
		t.Errorf("%d calls joined rows and %d tokens were lost: the test tries too little", joined, lost)
	}
}
