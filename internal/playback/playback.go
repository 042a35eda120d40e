// Package playback answers the model calls of a rollout, and its calls of the
// trainer's tools, with the answers of a recorded one. It reports where the agent
// does something else than it did then.
package playback

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Bounds of a recording in memory.
const (
	maxContent = 256 << 20 // bytes of messages and answers
	maxShared  = 8 << 20   // messages of all calls together
)

// Recording repeats the answers of a transcript. It is safe for concurrent use.
type Recording struct {
	calls  []*recorded
	tools  []*recordedTool
	hasher schema.Hasher // under mu

	mu   sync.Mutex
	runs map[schema.ID]*run
}

// recorded is a call of the transcript.
type recorded struct {
	number   int
	tag      string
	messages []json.RawMessage
	hashes   []schema.Hash
	reply    *schema.Reply
	fault    *schema.Fault
}

// run is one rollout that gets the answers.
type run struct {
	attempt   int
	given     map[int]*recorded // by the number of the call now
	used      map[*recorded]bool
	tools     int // calls of tools so far
	usedTools map[*recordedTool]bool
	first     *Divergence
	others    int
}

// diverges records a divergence. Only the first one is described.
func (r *run) diverges(d *Divergence) {
	if r.first != nil {
		r.others++
		return
	}
	r.first = d
}

// Divergence is a call that the recording does not have: a model call, or a call of
// one of the trainer's tools. The two kinds are counted separately.
type Divergence struct {
	Tool     string `json:"tool,omitempty"` // name of the tool; empty: a model call
	Call     int    `json:"call"`           // number of the call now
	Recorded int    `json:"recorded"`       // number of the recorded call that is most like it; 0: none is left
	Message  int    `json:"message"`        // index of the first message that differs
	Diff     string `json:"diff"`           // of that message or of the tool's arguments: lines of the recorded ones with -, of these with +
}

// Report compares a rollout with the recording.
type Report struct {
	Rollout  schema.ID   `json:"rollout"`
	Recorded int         `json:"recorded"` // calls of the recording
	Asked    int         `json:"asked"`    // calls that the rollout made
	Diverged *Divergence `json:"diverged"` // the first one; null: none
	Others   int         `json:"others"`   // further calls, also of tools, that the recording does not have
	Missing  []int       `json:"missing"`  // recorded calls that the rollout did not make

	RecordedTools int   `json:"recorded_tools"` // calls of the trainer's tools
	AskedTools    int   `json:"asked_tools"`
	MissingTools  []int `json:"missing_tools"`
}

// Same reports whether the rollout made the recorded calls and no other.
func (r *Report) Same() bool {
	return r.Diverged == nil && len(r.Missing) == 0 && len(r.MissingTools) == 0
}

// Load reads a transcript. A call without an answer is left out. The error is
// trajectory.ErrNoCalls, a *trajectory.TranscriptError, or says that the
// transcript is too large.
func Load(transcript io.Reader) (*Recording, error) {
	r := &Recording{runs: map[schema.ID]*run{}}
	at := map[int]*recorded{}
	content, shared := 0, 0
	err := trajectory.Each(transcript, func(l *schema.TranscriptLine) error {
		if q := l.Request; q != nil {
			c := &recorded{number: l.Call, tag: q.Tag}
			if q.Base > 0 || q.Keep > 0 {
				base := at[q.Base]
				if base == nil || q.Keep < 0 || q.Keep > len(base.messages) {
					return &trajectory.TranscriptError{Reason: fmt.Sprintf("call %d begins with messages of call %d, which are not there", l.Call, q.Base)}
				}
				c.messages, c.hashes = slices.Clone(base.messages[:q.Keep]), slices.Clone(base.hashes[:q.Keep])
			}
			for _, m := range q.Messages {
				content += len(m) + 64
				c.messages, c.hashes = append(c.messages, slices.Clone(m)), append(c.hashes, r.hasher.Message(m))
			}
			if shared += len(c.messages); content > maxContent || shared > maxShared {
				return tooLarge()
			}
			at[l.Call] = c
			return nil
		}
		if l.Tool != "" {
			if content += len(l.Arguments) + len(l.Text) + 64; content > maxContent {
				return tooLarge()
			}
			r.addTool(l)
			return nil
		}
		c := at[l.Call]
		if c == nil || c.reply != nil || c.fault != nil || l.Reply == nil && l.Fault == nil {
			return nil
		}
		if l.Reply != nil {
			q := *l.Reply // its JSON and prompt ids are the reader's
			q.Message, q.PromptIDs, q.Sampling, q.TopLogprobs = slices.Clone(q.Message), bytes.Clone(q.PromptIDs), slices.Clone(q.Sampling), slices.Clone(q.TopLogprobs)
			content += len(q.Message) + len(q.PromptIDs) + len(q.CompletionIDs) + len(q.Logprobs) + len(q.TopLogprobs)
			q.Retained, q.Digest = false, nil // only the recorded trainer had the retained ids
			c.reply = &q
		}
		c.fault = l.Fault
		r.calls = append(r.calls, c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(r.calls) == 0 {
		return nil, trajectory.ErrNoCalls
	}
	slices.SortStableFunc(r.calls, func(a, b *recorded) int { return a.number - b.number })
	return r, nil
}

func tooLarge() error {
	return &trajectory.TranscriptError{Reason: "it is too large to be played back"}
}

// runOf returns the run of an attempt. A new attempt begins again. The caller holds
// r.mu.
func (r *Recording) runOf(id schema.ID, attempt int) *run {
	now := r.runs[id]
	if now == nil || now.attempt != attempt {
		now = &run{attempt: attempt, given: map[int]*recorded{}, used: map[*recorded]bool{}, usedTools: map[*recordedTool]bool{}}
		r.runs[id] = now
	}
	return now
}

// Answer gives the recorded answer to a call. A call with the messages of a
// recorded call gets its answer. Any other call is a divergence, and gets the
// answer of the recorded call that begins with the most of its messages, so that
// the agent goes on. Pass it to trainer.Serve.
func (r *Recording) Answer(_ context.Context, c *schema.Call) (*schema.Reply, error) {
	k, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.runOf(k.Rollout, k.Attempt)
	found, asked := now.given[k.Call]
	if !asked { // a call that is asked again gets the same answer
		found = r.choose(now, k.Call, c)
		now.given[k.Call] = found
	}
	if found == nil {
		f := schema.Faultf("call", "replay", schema.WhoTrainer, "the recording has no call left for call %d", k.Call)
		f.Status = 400
		return nil, f
	}
	if found.fault != nil {
		f := *found.fault
		return nil, &f
	}
	reply := *found.reply
	return &reply, nil
}

func (r *Recording) choose(now *run, number int, c *schema.Call) *recorded {
	hashes := make([]schema.Hash, len(c.Messages))
	for i, m := range c.Messages {
		hashes[i] = r.hasher.Message(m)
	}
	var best *recorded
	most := -1
	for _, q := range r.calls {
		if now.used[q] {
			continue
		}
		n := common(q.hashes, hashes)
		if n == len(hashes) && n == len(q.hashes) {
			now.used[q] = true
			return q
		}
		if q.tag == c.Tag && n > most {
			best, most = q, n
		}
	}
	d := &Divergence{Call: number, Message: max(most, 0)}
	var then json.RawMessage
	if best != nil {
		now.used[best] = true
		d.Recorded = best.number
		then = at(best.messages, most)
	}
	d.Diff = diff(then, at(c.Messages, d.Message))
	now.diverges(d)
	return best
}

func at(list []json.RawMessage, i int) json.RawMessage {
	if i < len(list) {
		return list[i]
	}
	return nil
}

func common(a, b []schema.Hash) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Reports compares the rollouts that asked with the recording, in the order of
// their ids.
func (r *Recording) Reports() []Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Report{}
	for id, now := range r.runs {
		p := Report{Rollout: id, Recorded: len(r.calls), Asked: len(now.given), Diverged: now.first, Others: now.others, Missing: []int{},
			RecordedTools: len(r.tools), AskedTools: now.tools, MissingTools: r.missingTools(now)}
		for _, q := range r.calls {
			if !now.used[q] {
				p.Missing = append(p.Missing, q.number)
			}
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Report) int { return bytes.Compare([]byte(a.Rollout), []byte(b.Rollout)) })
	return out
}
