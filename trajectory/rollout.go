package trajectory

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Bounds of one rollout in memory.
const (
	maxCalls     = 32_768
	maxReserved  = 512 << 20 // bytes of token ids, log-probs and messages
	perTurn      = 256       // estimate of the bytes that a message takes without its text
	maxPositions = 256 << 20 // tokens in all rows together
)

// Options select how calls become rows. The zero value has the defaults.
type Options struct {
	// Merge is the loosest way in which a call may join a row: MergeClean,
	// MergeRealign or MergeFork, with which each call has a row of its own.
	// Empty: MergeRealign.
	Merge string `json:"merge,omitempty"`
	// MaxLost is the largest number of sampled tokens of one answer that a row may
	// leave out of training because the next prompt has other tokens for them. If
	// it would leave out more, a row begins with the next call.
	MaxLost int `json:"max_lost,omitempty"`
	// Roles are the roles of calls to train on. Nil: agent and subagent.
	Roles []string `json:"roles,omitempty"`
	// WithoutLogprobs trains on answers that have no log-probs, too. Their
	// log-probs in rows are 0.
	WithoutLogprobs bool `json:"without_logprobs,omitempty"`
	// Messages keeps the messages of calls.
	Messages bool `json:"-"`
}

// Check returns an *schema.InvalidError for options that are not valid.
func (o *Options) Check() error {
	if o.Merge != "" && !slices.Contains([]string{MergeClean, MergeRealign, MergeFork}, o.Merge) {
		return &schema.InvalidError{Field: "merge", Value: o.Merge, Want: "want clean, realign or fork"}
	}
	if o.MaxLost < 0 {
		return &schema.InvalidError{Field: "max_lost", Value: fmt.Sprint(o.MaxLost), Want: "want a number of tokens of 0 or more"}
	}
	for _, r := range o.Roles {
		if !slices.Contains([]string{schema.TagAgent, schema.TagSubagent, schema.TagAux}, r) {
			return &schema.InvalidError{Field: "roles", Value: r, Want: "want agent, subagent or aux"}
		}
	}
	return nil
}

// Rollout is the recorded part of a rollout that training needs: its calls, linked
// to a tree.
type Rollout struct {
	ID       schema.ID `json:"rollout,omitempty"`
	Attempt  int       `json:"attempt,omitempty"`
	Group    string    `json:"group,omitempty"`
	Index    int       `json:"index"`
	Task     string    `json:"task,omitempty"`
	Reward   *float64  `json:"reward"`
	Calls    []*Call   `json:"calls"` // in the order of their requests
	Tokens   Tokens    `json:"tokens"`
	Breaks   []Break   `json:"breaks"`
	Findings []Finding `json:"findings"`

	leaves  []*Call
	numbers map[string]int32 // of policy versions
}

// Versions lists the policy versions that answered the calls, in the order of their first
// answers.
func (r *Rollout) Versions() []string {
	var out []string
	for _, c := range r.Calls {
		for _, v := range c.Versions {
			if !slices.Contains(out, v.Version) {
				out = append(out, v.Version)
			}
		}
	}
	return out
}

// Read reads a transcript and links its calls. result is the rollout's result;
// without one (nil), every answer counts as committed and the reward is unknown. A
// transcript that ends early or is damaged gives the calls before that place and a
// finding. The error is about the options, or ErrNoCalls, or a *TranscriptError for
// a transcript without a readable call.
func Read(transcript io.Reader, result *schema.Result, o Options) (*Rollout, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.Merge = cmp.Or(o.Merge, MergeRealign)
	if o.Roles == nil {
		o.Roles = []string{schema.TagAgent, schema.TagSubagent}
	}
	r := &reader{o: o, out: &Rollout{Findings: []Finding{}, Breaks: []Break{}}, numbers: map[int]*Call{}, talk: newConversations(), found: ends{at: map[mark][]*Call{}}}
	if result != nil {
		t := r.out
		t.ID, t.Attempt, t.Group, t.Index, t.Task, t.Reward = result.ID, result.Attempt, result.Group, result.Index, result.Task, result.Reward
		r.committed = map[int]string{}
		for _, k := range result.Committed {
			r.committed[k.Call] = k.Gen
		}
	}
	err := Each(transcript, r.line)
	var broken *TranscriptError
	switch {
	case errors.Is(err, errEnough):
		r.find(LevelError, "too_large", 0, "the calls after call %d are left out: the rollout is larger than the bounds of a reader", r.last)
	case errors.As(err, &broken) && len(r.out.Calls) > 0:
		r.find(LevelError, "transcript_broken", 0, "the rest is left out: %v", broken)
	case err != nil:
		return nil, err
	}
	if len(r.out.Calls) == 0 {
		return nil, ErrNoCalls
	}
	r.finish()
	return r.out, nil
}

// reader builds a Rollout.
type reader struct {
	o         Options
	out       *Rollout
	committed map[int]string // nil: not known
	numbers   map[int]*Call
	talk      *conversations
	found     ends
	tips      []tip
	agent     *Call // the last call of the agent itself with an answer that it got
	reserved  int   // bytes
	last      int
	lines     int
}

func (r *reader) reserve(bytes int) error {
	if r.reserved += bytes; r.reserved > maxReserved {
		return errEnough
	}
	return nil
}

func (r *reader) line(l *schema.TranscriptLine) error {
	r.lines++
	switch {
	case l.LeftOut > 0:
		r.find(LevelError, "transcript_truncated", 0, "the transcript had no room for its last %d lines", l.LeftOut)
	case l.Request != nil:
		return r.began(l)
	case l.Tool == "" && (l.Reply != nil || l.Fault != nil):
		return r.ended(l)
	}
	return nil
}

// began adds a call.
func (r *reader) began(l *schema.TranscriptLine) error {
	q := l.Request
	if r.numbers[l.Call] != nil {
		r.find(LevelWarning, "duplicate", l.Call, "the transcript has call %d twice; the first one counts", l.Call)
		return nil
	}
	if len(r.out.Calls) == maxCalls {
		return errEnough
	}
	c := &Call{Number: l.Call, Tag: q.Tag, Role: q.Tag, Model: q.Model, At: l.At, Base: q.Base, Keep: q.Keep, index: int32(len(r.out.Calls)), asked: r.lines}
	r.whose(c, q.Key)
	base := r.numbers[q.Base]
	switch {
	case q.Base == 0 && q.Keep == 0:
	case base == nil || base.broken || q.Keep < 0 || q.Keep > base.messages:
		c.broken = true
		r.find(LevelError, "base_missing", l.Call, "the messages of call %d are not known: it begins with %d messages of call %d", l.Call, q.Keep, q.Base)
	default:
		c.conversation, c.tools = r.talk.back(base.conversation, q.Keep), base.tools
	}
	if len(q.Tools) > 0 {
		c.tools = !bytes.Equal(q.Tools, []byte("[]"))
	}
	size := perCall
	for _, m := range q.Messages {
		size += perTurn
		if r.o.Messages {
			size += len(m)
			c.Messages = append(c.Messages, slices.Clone(m))
		}
	}
	if err := r.reserve(size); err != nil {
		return err
	}
	if !c.broken {
		for _, m := range q.Messages {
			c.conversation = r.talk.add(c.conversation, m)
		}
		c.messages = int(r.talk.nodes[c.conversation].count)
		at := &r.talk.nodes[c.conversation]
		at.calls = append(at.calls, c.index)
	}
	r.numbers[l.Call], r.last = c, l.Call
	r.out.Calls = append(r.out.Calls, c)
	return nil
}

// whose compares a call's key with the rollout's id and attempt. The first key sets them.
func (r *reader) whose(c *Call, key string) {
	k, err := schema.ParseKey(key)
	if err != nil {
		return
	}
	if r.out.ID == "" {
		r.out.ID, r.out.Attempt = k.Rollout, k.Attempt
	}
	if k.Rollout != r.out.ID || k.Attempt != r.out.Attempt {
		r.find(LevelError, "other_rollout", c.Number, "call %d belongs to attempt %d of rollout %s", c.Number, k.Attempt, k.Rollout)
	}
}

// ended adds a call's answer and links the call.
func (r *reader) ended(l *schema.TranscriptLine) error {
	c := r.numbers[l.Call]
	switch {
	case c == nil:
		r.find(LevelError, "base_missing", l.Call, "the transcript lacks the request of call %d", l.Call)
		return nil
	case c.answered || c.Fault != nil:
		r.find(LevelWarning, "duplicate", l.Call, "the transcript has the end of call %d twice; the first one counts", l.Call)
		return nil
	}
	c.Gen, c.MS = l.Gen, l.MS
	if l.Reply == nil {
		c.Fault = l.Fault
		return nil
	}
	q := l.Reply
	c.answered, c.ended, c.FinishReason, c.Usage, c.Versions = true, r.lines, q.FinishReason, q.Usage, q.Versions
	gen, ok := r.committed[c.Number]
	c.committed = r.committed == nil || ok && gen == c.Gen
	c.said = saidOf(q.Message)
	if r.o.Messages {
		c.Message = slices.Clone(q.Message)
	}
	c.Prompt, c.Completion = q.PromptIDs.Len(), q.CompletionIDs.Len()
	c.completion, c.logprobs = q.CompletionIDs, q.Logprobs
	c.hasIDs = c.Prompt > 0
	r.checkAnswer(c, q)
	r.link(c, q.PromptIDs)
	return r.reserve(len(c.Message) + len(c.fresh) + len(c.completion) + len(c.logprobs) + 64*len(c.Versions))
}

// finish links the calls without an answer and finds the rows.
func (r *reader) finish() {
	for _, c := range r.out.Calls {
		if !c.answered {
			r.link(c, nil)
		}
		if !c.committed {
			c.Role = RoleDiscarded
		}
	}
	r.rows()
	r.count()
	r.repeats()
	r.checkAll()
}
