package trajectory

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Bounds of one trajectory in memory, in bytes.
const (
	maxContent = 256 << 20 // messages, reasoning and tool calls
	maxIDs     = 64 << 20  // prompt ids, four bytes each
	perCall    = 2048      // estimate for a call and its step, without their text
	perMessage = 512
)

// ErrNoCalls means that a transcript has no model call.
var ErrNoCalls = errors.New("the transcript has no model call")

// errEnough ends the reading of a transcript that is larger than the bounds.
var errEnough = errors.New("enough")

// Write writes the trajectory of a rollout as ATIF in JSON (a
// trajectory.json). See Convert.
func Write(w io.Writer, transcript io.Reader, result *schema.Result) error {
	t, err := Convert(transcript, result)
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(t); err != nil {
		return fmt.Errorf("write the trajectory: %w", err)
	}
	return nil
}

// Convert makes an ATIF trajectory of a transcript artifact and its rollout's
// result. The trajectory has a step for each model call of the agent, with its
// tool calls, their results, its token ids and log-probs, and a step for each
// message to the agent. Calls of subagents and helper calls are trajectories
// within it. Notes lists the parts that are left out. The error is ErrNoCalls, a
// *TranscriptError, or comes from reading.
func Convert(transcript io.Reader, result *schema.Result) (*ATIF, error) {
	c := &converter{result: result, calls: map[int]*call{}, committed: map[int]string{}}
	for _, k := range result.Committed {
		c.committed[k.Call] = k.Gen
	}
	c.root = c.newThread(schema.TagAgent)
	err := Each(transcript, c.line)
	var broken *TranscriptError
	switch {
	case errors.Is(err, errEnough):
		c.notes = append(c.notes, fmt.Sprintf("The calls after call %d are left out: the messages exceed %d bytes.", c.last, maxContent))
	case errors.As(err, &broken) && len(c.calls) > 0:
		c.notes = append(c.notes, "The rest is left out: "+broken.Error()+".")
	case err != nil:
		return nil, err
	}
	if len(c.calls) == 0 {
		return nil, ErrNoCalls
	}
	return c.finish(), nil
}

// call is the part of a call that later calls need.
type call struct {
	thread *thread
	tag    string
	model  string
	count  int // messages
	turn   int // index of the first message of the model; math.MaxInt: none
}

// thread is one conversation, which becomes one trajectory.
type thread struct {
	tag   string
	atif  *ATIF
	seen  map[[32]byte]bool // messages that are steps already
	last  int               // its last call
	wants map[string]*Step  // tool call id → the step for its result
	turn  *Step             // the last step of the model
}

type converter struct {
	result    *schema.Result
	committed map[int]string
	calls     map[int]*call
	root      *thread
	others    []*thread
	notes     []string
	content   int64 // bytes of messages
	ids       int64 // bytes of prompt ids
	dropped   int   // steps without prompt ids
	last      int
}

func (c *converter) newThread(tag string) *thread {
	t := &thread{tag: tag, seen: map[[32]byte]bool{}, wants: map[string]*Step{}}
	t.atif = &ATIF{
		SessionID: string(c.result.ID),
		Agent:     AgentInfo{Name: cmp.Or(c.result.Agent, "unknown"), Version: cmp.Or(c.result.AgentVersion, "unknown")},
		Extra:     map[string]any{"role": tag},
	}
	return t
}

func (c *converter) line(l *schema.TranscriptLine) error {
	switch {
	case l.LeftOut > 0:
		c.notes = append(c.notes, fmt.Sprintf("The transcript had no room for its last %d lines.", l.LeftOut))
	case l.Request != nil:
		return c.began(l)
	case l.Reply != nil || l.Fault != nil && l.Tool == "":
		return c.ended(l)
	}
	return nil
}

func (c *converter) spend(n int) error {
	if c.content += int64(n); c.content > maxContent {
		return errEnough
	}
	return nil
}

// began adds the new messages of a call's request to its conversation.
func (c *converter) began(l *schema.TranscriptLine) error {
	q := l.Request
	k := &call{tag: q.Tag, model: q.Model, count: q.Keep + len(q.Messages), turn: math.MaxInt}
	size := perCall + len(q.Tools)
	for _, m := range q.Messages {
		size += perMessage + len(m)
	}
	if err := c.spend(size); err != nil {
		return err
	}
	base := c.calls[q.Base]
	if base != nil && base.turn < q.Keep {
		k.turn = base.turn
	}
	k.thread = c.threadOf(k, q, base)
	t := k.thread
	if t.atif.Agent.ModelName == "" {
		t.atif.Agent.ModelName = q.Model
	}
	if len(q.Tools) > 0 && t.atif.Agent.ToolDefinitions == nil {
		t.atif.Agent.ToolDefinitions = objects(q.Tools)
	}
	appended := q.Base > 0 && q.Base == t.last && base.count == q.Keep
	for i, raw := range q.Messages {
		m := readMessage(raw)
		if m.Role == "assistant" {
			k.turn = min(k.turn, q.Keep+i)
		}
		digest := sha256.Sum256(raw)
		if appended || !t.seen[digest] {
			c.given(t, &m, l.At)
		}
		t.seen[digest] = true
	}
	t.last, c.last = l.Call, l.Call
	c.calls[l.Call] = k
	return nil
}

// threadOf returns the conversation of a call. The agent's own calls are one
// conversation. Another call continues the conversation of its base if the two
// share a turn of the model, not only a system prompt.
func (c *converter) threadOf(k *call, q *schema.Call, base *call) *thread {
	if k.tag == schema.TagAgent {
		return c.root
	}
	if base != nil && base.thread.tag == k.tag && (k.turn < q.Keep || q.Keep > 0 && q.Keep == base.count) {
		return base.thread
	}
	t := c.newThread(k.tag)
	n := 1
	for _, o := range c.others {
		if o.tag == k.tag {
			n++
		}
	}
	t.atif.TrajectoryID = fmt.Sprintf("%s-%d", k.tag, n)
	if q.Keep > 0 {
		t.atif.Extra["begins_with"] = map[string]any{"call": q.Base, "messages": q.Keep}
	}
	c.others = append(c.others, t)
	return t
}

func objects(array json.RawMessage) []json.RawMessage {
	var out []json.RawMessage
	_ = rawjson.EachElement([]byte(array), func(v jsontext.Value) error { // a value other than a list has no elements
		if v.Kind() == '{' {
			out = append(out, slices.Clone(json.RawMessage(v)))
		}
		return nil
	})
	return out
}

// given adds a message that the agent sent.
func (c *converter) given(t *thread, m *message, at int64) {
	switch m.Role {
	case "tool", "function":
		c.observe(t, m)
		return
	case "assistant":
		// The model's own turns are steps already, as answers. A message that the
		// model did not send, or that the agent changed, is context.
		if t.turn != nil && c.isAnswer(t, m) {
			return
		}
		zero := 0
		t.add(&Step{Source: sourceAgent, Message: m.content(), ToolCalls: m.toolCalls(c.last + 1), Copied: true, LLMCallCount: &zero, Timestamp: stamp(at)})
		return
	}
	s := &Step{Source: sourceUser, Message: m.content(), Timestamp: stamp(at)}
	if m.Role == "system" || m.Role == "developer" {
		s.Source = sourceSystem
	}
	t.add(s)
}

// isAnswer reports whether a message from an agent is an earlier answer of the model.
// It compares texts, since agents change the form of answers.
func (c *converter) isAnswer(t *thread, m *message) bool {
	own, tools := m.content(), m.toolCalls(0)
	for _, s := range slices.Backward(t.atif.Steps) {
		if s.Source != sourceAgent {
			continue
		}
		if strings.TrimSpace(plain(s.Message)) == strings.TrimSpace(plain(own)) && slices.EqualFunc(s.ToolCalls, tools, func(a, b ToolCall) bool { return a.Name == b.Name }) {
			return true
		}
		if len(t.atif.Steps)-s.ID > 64 { // a match further back would be in a rewritten conversation
			break
		}
	}
	return false
}

func plain(c Content) string {
	if c.Parts == nil {
		return c.Text
	}
	var b strings.Builder
	for _, p := range c.Parts {
		if p.Text != nil {
			b.WriteString(*p.Text)
		}
	}
	return b.String()
}

// observe adds a tool's result to the step with its call.
func (c *converter) observe(t *thread, m *message) {
	r := ObservationResult{SourceCallID: m.ToolCallID, Content: m.content()}
	s := t.wants[m.ToolCallID]
	if s == nil {
		if r.SourceCallID != "" {
			r.Extra = map[string]any{"tool_call_id": r.SourceCallID}
		}
		if r.SourceCallID, s = "", t.turn; s == nil {
			s = &Step{Source: sourceUser}
			t.add(s)
		}
	}
	if s.Observation == nil {
		s.Observation = &Observation{}
	}
	if r.SourceCallID != "" && slices.ContainsFunc(s.Observation.Results, func(o ObservationResult) bool { return o.SourceCallID == r.SourceCallID }) {
		r.Extra = map[string]any{"changed_later": true} // the agent now sends the model another result than before
	}
	s.Observation.Results = append(s.Observation.Results, r)
}

// ended adds the step of a call's answer, or records that the call has none.
func (c *converter) ended(l *schema.TranscriptLine) error {
	k := c.calls[l.Call]
	if k == nil {
		return nil // the transcript lacks the request
	}
	extra := map[string]any{"call": l.Call, "ms": l.MS}
	if l.Gen != "" {
		extra["generation"], extra["committed"] = l.Gen, c.committed[l.Call] == l.Gen
	}
	if l.Reply == nil {
		if err := c.spend(perCall + len(l.Fault.Message)); err != nil {
			return err
		}
		extra["fault"] = l.Fault
		k.thread.add(&Step{Source: sourceSystem, Message: Content{Text: fmt.Sprintf("Model call %d got no answer: %s", l.Call, l.Fault.Message)}, Timestamp: stamp(l.At), Extra: extra})
		return nil
	}
	r := l.Reply
	if err := c.spend(perCall + len(r.Message) + len(r.CompletionIDs) + len(r.Logprobs)); err != nil {
		return err
	}
	m, one := readMessage(r.Message), 1
	s := &Step{Source: sourceAgent, Message: m.content(), Reasoning: m.reasoning(), ToolCalls: m.toolCalls(l.Call), LLMCallCount: &one, Timestamp: stamp(l.At), Extra: extra}
	if k.model != k.thread.atif.Agent.ModelName {
		s.ModelName = k.model
	}
	extra["finish_reason"] = r.FinishReason
	if len(r.Versions) > 0 {
		extra["policy_versions"] = r.Versions
	}
	if len(r.Sampling) > 0 {
		extra["sampling"] = slices.Clone(r.Sampling)
	}
	if len(r.Edits) > 0 {
		extra["edits"] = r.Edits
	}
	s.Metrics = c.metrics(r)
	k.thread.add(s)
	k.thread.turn = s
	for i, w := range s.ToolCalls {
		k.thread.wants[cmp.Or(m.ToolCalls[i].ID, w.ID)] = s
	}
	return nil
}

func (c *converter) metrics(r *schema.Reply) *Metrics {
	m := &Metrics{PromptTokens: r.Usage.PromptTokens, CompletionTokens: r.Usage.CompletionTokens, CompletionIDs: r.CompletionIDs, Logprobs: r.Logprobs}
	if c.ids += int64(len(r.PromptIDs)); c.ids <= maxIDs {
		m.PromptIDs = slices.Clone(r.PromptIDs)
	} else {
		c.dropped++
	}
	extra := map[string]any{}
	if r.Retained {
		extra["retained_by_trainer"] = true
	}
	if slices.ContainsFunc(r.Logprobs.Unpack(), func(v float32) bool { return math.IsInf(float64(v), 0) || math.IsNaN(float64(v)) }) {
		extra["logprobs"], m.Logprobs = r.Logprobs, nil // the format allows only numbers
	}
	if len(extra) > 0 {
		m.Extra = extra
	}
	return m
}

func (t *thread) add(s *Step) {
	s.ID = len(t.atif.Steps) + 1
	t.atif.Steps = append(t.atif.Steps, s)
}

func stamp(ms int64) string {
	if ms <= 0 || ms > 1<<45 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// finish puts the conversations together.
func (c *converter) finish() *ATIF {
	root, r := c.root.atif, c.result
	if len(root.Steps) == 0 {
		c.root.add(&Step{Source: sourceSystem, Message: Content{Text: "The agent itself made no model call; the calls that were made are among the subagents."}})
	}
	root.TrajectoryID = fmt.Sprintf("%s/%d", r.ID, r.Attempt)
	for k, v := range map[string]any{"task": r.Task, "attempt": r.Attempt, "status": r.Status, "reward": r.Reward, "group": r.Group, "index": r.Index} {
		root.Extra[k] = v
	}
	if c.dropped > 0 {
		c.notes = append(c.notes, fmt.Sprintf("The prompt ids of %d steps are left out: together they exceed %d bytes. The transcript has them.", c.dropped, maxIDs))
	}
	root.Notes = strings.Join(c.notes, " ")
	for _, t := range append([]*thread{c.root}, c.others...) {
		a := t.atif
		a.SchemaVersion = atif18
		if len(a.Steps) == 0 {
			t.add(&Step{Source: sourceSystem, Message: Content{Text: "This call sent nothing of its own and got no answer."}})
		}
		a.FinalMetrics = &FinalMetrics{Steps: len(a.Steps)}
		for _, s := range a.Steps {
			if s.Metrics != nil {
				a.FinalMetrics.PromptTokens += s.Metrics.PromptTokens
				a.FinalMetrics.CompletionTokens += s.Metrics.CompletionTokens
			}
		}
		if t != c.root {
			root.Subagents = append(root.Subagents, a)
		}
	}
	return root
}
