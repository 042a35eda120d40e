package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Tags of a call: what it is to the rollout.
const (
	TagAgent    = "agent"    // a turn of the agent itself
	TagAux      = "aux"      // a title, a summary, a quota probe
	TagSubagent = "subagent" // a turn of an agent that the agent started
)

// Key names one model call of one execution of a rollout. A call that is
// asked again keeps its key; an answer is given once per key.
type Key struct {
	Rollout ID
	Attempt int // 1, 2, ...: one execution of the rollout
	Call    int // 1, 2, ...: one model call of it
}

// String is the key as it travels: rid/attempt/call.
func (k Key) String() string {
	var room [64]byte
	b := append(append(room[:0], k.Rollout...), '/')
	b = append(strconv.AppendInt(b, int64(k.Attempt), 10), '/')
	return string(strconv.AppendInt(b, int64(k.Call), 10))
}

// Is reports whether s is the key as it travels.
func (k Key) Is(s string) bool {
	parsed, err := ParseKey(s)
	return err == nil && parsed == k
}

// ParseKey reads what String wrote.
func ParseKey(s string) (Key, error) {
	rollout, rest, _ := strings.Cut(s, "/")
	attempt, call, ok := strings.Cut(rest, "/")
	if !ok {
		return Key{}, invalid("key", s, "want rollout/attempt/call")
	}
	k := Key{}
	var err error
	if k.Rollout, err = ParseID(rollout); err != nil {
		return Key{}, err
	}
	if k.Attempt, err = ParseCount("key", attempt); err != nil {
		return Key{}, err
	}
	if k.Call, err = ParseCount("key", call); err != nil {
		return Key{}, err
	}
	return k, nil
}

// ParseCount reads a number of 1 or more in its only form: no sign, no zeros
// in front.
func ParseCount(field, s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1<<30 || s[0] < '1' || s[0] > '9' {
		return 0, invalid(field, s, "want a number of 1 or more")
	}
	return n, nil
}

// Call is one model call in the canonical form, which has the semantics of
// OpenAI chat completions
// (https://platform.openai.com/docs/api-reference/chat/create). Messages,
// tools and parameters are the agent's own JSON, untouched.
type Call struct {
	V        int                        `json:"v"`
	Key      string                     `json:"key"`
	Tag      string                     `json:"tag"`
	Dialect  string                     `json:"dialect"`
	Model    string                     `json:"model,omitempty"`
	Messages []json.RawMessage          `json:"messages"`
	Tools    json.RawMessage            `json:"tools,omitempty"`  // an array; present when changed against base
	Params   SortedMap[json.RawMessage] `json:"params,omitempty"` // every other field of the agent's request; present when changed against base
	Base     int                        `json:"base,omitempty"`   // a call of this attempt whose first Keep messages come first; 0: none
	Keep     int                        `json:"keep,omitempty"`
	Digest   []byte                     `json:"digest,omitempty"` // of the whole, see docs/protocol.md
	Stream   bool                       `json:"stream,omitempty"` // the agent asked for a stream
	// RemainingMS is how long the caller will still wait, in milliseconds.
	RemainingMS int64 `json:"remaining_ms,omitempty"`

	// Shares says what a whole call has in common with an earlier one. It is
	// known inside a worker only; what travels is Delta.
	Shares Shares `json:"-"`
}

// Shares names what a call has in common with an earlier call of its attempt.
type Shares struct {
	Base  int  // that call; 0: nothing is shared
	Keep  int  // its first messages that are the same
	Tools bool // the tools are the same too, or both have none

	Params bool // the parameters are the same too
}

// Delta is the call as it travels to a trainer that knows the base: without
// what the two share.
func (c *Call) Delta() Call {
	d := *c
	if c.Shares.Base == 0 {
		return d
	}
	d.Base, d.Keep, d.Messages = c.Shares.Base, c.Shares.Keep, c.Messages[c.Shares.Keep:]
	switch {
	case c.Shares.Tools:
		d.Tools = nil
	case len(c.Tools) == 0:
		d.Tools = json.RawMessage(noTools) // the base has some
	}
	switch {
	case c.Shares.Params:
		d.Params = nil
	case c.Params == nil:
		d.Params = SortedMap[json.RawMessage]{} // the base has some
	}
	return d
}

// Rebuild makes a call that came as a delta whole again. base is the call that
// it names; ok is false when that does not fit. Messages are appended to those of
// base, in place if there is room: clip them where another call may go on from
// the same base.
func (c *Call) Rebuild(base *Call) (ok bool) {
	if base == nil || c.Keep > len(base.Messages) {
		return false
	}
	messages := base.Messages
	if c.Keep < len(messages) {
		messages = messages[:c.Keep:c.Keep]
	}
	c.Messages = append(messages, c.Messages...)
	switch {
	case len(c.Tools) == 0:
		c.Tools = base.Tools
	case string(c.Tools) == noTools:
		c.Tools = nil
	}
	if c.Params == nil {
		c.Params = maps.Clone(base.Params)
	}
	c.Base, c.Keep = 0, 0
	return true
}

// sizeHint counts raw bytes and a few for each header.
func (c *Call) sizeHint() int {
	n := len(c.Tools)
	for _, m := range c.Messages {
		n += len(m) + 8
	}
	for k, v := range c.Params {
		n += len(k) + len(v) + 8
	}
	return n
}

// Validate checks everything but the JSON inside, which the dialect that made
// the call has read and whoever answers it will read.
func (c *Call) Validate() error {
	if _, err := ParseKey(c.Key); err != nil {
		return err
	}
	if err := checkOneOf("tag", c.Tag, TagAgent, TagAux, TagSubagent); err != nil {
		return err
	}
	if err := CheckToken("dialect", c.Dialect); err != nil {
		return err
	}
	if err := checkText("model", c.Model, maxName); err != nil {
		return err
	}
	if err := checkCount("messages", len(c.Messages), maxMessages); err != nil {
		return err
	}
	if len(c.Messages) == 0 && c.Keep == 0 {
		return invalid("messages", "none", "want at least one")
	}
	if err := checkCount("params", len(c.Params), maxList); err != nil {
		return err
	}
	if c.Base < 0 || c.Keep < 0 || c.Base == 0 && c.Keep > 0 {
		return invalid("keep", fmt.Sprintf("base %d, keep %d", c.Base, c.Keep), "both 0, or base 1 or more")
	}
	if n := len(c.Digest); n != 0 && n != 32 {
		return invalid("digest", fmt.Sprintf("%d bytes", n), "want 32")
	}
	return checkRange("remaining_ms", c.RemainingMS, 0, maxDurationMS)
}
