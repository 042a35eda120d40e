// Package playback answers the model calls of a rollout with the answers of a
// recorded one, and reports where the agent does something else than it did then.
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
	attempt int
	given   map[int]*recorded // by the number of the call now
	used    map[*recorded]bool
	first   *Divergence
	others  int
}

// Divergence is a call that the recording does not have.
type Divergence struct {
	Call     int    `json:"call"`     // number of the call now
	Recorded int    `json:"recorded"` // number of the recorded call that is most like it; 0: none is left
	Message  int    `json:"message"`  // index of the first message that differs
	Diff     string `json:"diff"`     // of that message: lines of the recorded one with -, of this one with +
}

// Report compares a rollout with the recording.
type Report struct {
	Rollout  schema.ID   `json:"rollout"`
	Recorded int         `json:"recorded"` // calls of the recording
	Asked    int         `json:"asked"`    // calls that the rollout made
	Diverged *Divergence `json:"diverged"` // the first one; null: none
	Others   int         `json:"others"`   // further calls that the recording does not have
	Missing  []int       `json:"missing"`  // recorded calls that the rollout did not make
}

// Same reports whether the rollout made the recorded calls and no other.
func (r *Report) Same() bool { return r.Diverged == nil && len(r.Missing) == 0 }

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
				return &trajectory.TranscriptError{Reason: "it is too large to be played back"}
			}
			at[l.Call] = c
			return nil
		}
		c := at[l.Call]
		if c == nil || l.Tool != "" || c.reply != nil || c.fault != nil || l.Reply == nil && l.Fault == nil {
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
	now := r.runs[k.Rollout]
	if now == nil || now.attempt != k.Attempt { // a new attempt begins again
		now = &run{attempt: k.Attempt, given: map[int]*recorded{}, used: map[*recorded]bool{}}
		r.runs[k.Rollout] = now
	}
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
	if now.first != nil {
		now.others++
		return best
	}
	d.Diff = diff(then, at(c.Messages, d.Message))
	now.first = d
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
		p := Report{Rollout: id, Recorded: len(r.calls), Asked: len(now.given), Diverged: now.first, Others: now.others, Missing: []int{}}
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
