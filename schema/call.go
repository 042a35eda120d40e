package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Tags of a call. A tag names the purpose of the call in its rollout.
const (
	TagAgent    = "agent"    // a turn of the agent itself
	TagAux      = "aux"      // a title, a summary, a quota probe
	TagSubagent = "subagent" // a turn of an agent that the agent started
)

// Key names one model call of one execution of a rollout. A call that is
// asked again keeps its key; each key gets one answer.
type Key struct {
	Rollout ID
	Attempt int // 1, 2, ...: one execution of the rollout
	Call    int // 1, 2, ...: one model call of the attempt
}

// String returns the wire form of the key: rollout/attempt/call.
func (k Key) String() string {
	var room [64]byte
	b := append(append(room[:0], k.Rollout...), '/')
	b = append(strconv.AppendInt(b, int64(k.Attempt), 10), '/')
	return string(strconv.AppendInt(b, int64(k.Call), 10))
}

// Is reports whether s is the wire form of the key.
func (k Key) Is(s string) bool {
	parsed, err := ParseKey(s)
	return err == nil && parsed == k
}

// ParseKey reads the wire form of a key, see Key.String. Errors are an
// *InvalidError.
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

// ParseCount reads a number of 1 or more without a sign or leading zeros. field
// names it in the error.
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
	Tools    json.RawMessage            `json:"tools,omitempty"`  // an array; with Base only when it differs from the base's
	Params   SortedMap[json.RawMessage] `json:"params,omitempty"` // every other field of the agent's request; with Base only when they differ from the base's
	Base     int                        `json:"base,omitempty"`   // number of an earlier call of this attempt; Messages follow its first Keep messages. 0: Messages are complete
	Keep     int                        `json:"keep,omitempty"`   // number of messages taken from the call Base
	Digest   []byte                     `json:"digest,omitempty"` // of the whole call, see docs/protocol.md
	Stream   bool                       `json:"stream,omitempty"` // the agent asked for a stream
	// RemainingMS is how long the caller will still wait, in milliseconds.
	RemainingMS int64 `json:"remaining_ms,omitempty"`

	// Shares names the parts that a whole call has in common with an earlier
	// one. It exists inside a worker only and is not sent; see Delta.
	Shares Shares `json:"-"`
	// Replaced counts the invalid Unicode characters of the new part of the agent's
	// request that the call has as U+FFFD. It exists inside a worker only and is not
	// sent.
	Replaced int `json:"-"`
}

// Shares names the parts that a call has in common with an earlier call of its
// attempt.
type Shares struct {
	Base  int  // number of the earlier call; 0: nothing is shared
	Keep  int  // number of equal messages at the beginning of both
	Tools bool // both have the same tools, or none

	Params bool // both have the same parameters
}

// Delta returns the call without the parts that it shares with its base, for a
// trainer that knows the base.
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
		d.Tools = json.RawMessage(noTools) // the base has tools, this call has none
	}
	switch {
	case c.Shares.Params:
		d.Params = nil
	case c.Params == nil:
		d.Params = SortedMap[json.RawMessage]{} // the base has parameters, this call has none
	}
	return d
}

// Rebuild turns a call that came as a delta into the whole call. base is the
// call with the number c.Base; ok is false when base is nil or has fewer than
// Keep messages. The new messages are appended to base.Messages, in place if
// its capacity allows: clip that slice if another call may use the same base.
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

// sizeHint estimates the encoded size: all raw bytes and 8 for each header.
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

// check checks all fields except the JSON inside, which the dialect of the
// gate has read already and the trainer will read.
func (c *Call) check() error {
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
		return invalid("messages", "none", "want at least one, unless keep is above 0")
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
