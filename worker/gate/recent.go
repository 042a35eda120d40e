package gate

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync/atomic"

	"github.com/turngate/turngate/schema"
)

// Memory bounds the conversations that a worker's sessions keep to compare
// later calls with. Beyond it only their hashes are kept: calls still travel as
// what is new, but all of them is read and hashed again.
type Memory struct {
	limit int64
	used  atomic.Int64
}

// NewMemory is a bound in bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// Used is how many bytes are kept.
func (m *Memory) Used() int64 { return m.used.Load() }

func (m *Memory) reserve(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

func (m *Memory) release(n int64) { m.used.Add(-n) }

// recent is what the newest calls of a session were, oldest first. Later ones
// are compared with all of them: agents have branches, for sub-agents and
// titles, beside the main conversation, and go back in it.
type recent []recentCall

type recentCall struct {
	number   int
	messages []json.RawMessage // nil: there was no room
	tools    json.RawMessage
	hashes   schema.Hashes
	size     int64 // bytes that are reserved for it
}

// maxRecent is how many calls a session remembers.
const maxRecent = 6

// place finds what a call of this size shares with one of the newest, says
// what it is in all, and remembers it. kept is false when there was no room for
// more than its hashes.
func (r *recent) place(number int, call *schema.Call, size int64, m *Memory) (shares schema.Shares, digest []byte, kept bool) {
	c := recentCall{number: number, messages: call.Messages, tools: call.Tools, size: size}
	c.hashes = r.hash(&c)
	shares, digest = r.shares(&c), call.DigestOf(c.hashes)
	if kept = m.reserve(size); !kept {
		c.messages, c.tools, c.size = nil, nil, 0
	}
	*r = append(*r, c)
	if len(*r) > maxRecent {
		m.release((*r)[0].size)
		*r = slices.Delete(*r, 0, 1)
	}
	return shares, digest, kept
}

// drop gives the memory back.
func (r *recent) drop(m *Memory) {
	for _, c := range *r {
		m.release(c.size)
	}
	*r = nil
}

// hash hashes what is new in a call. What is byte for byte as in an earlier
// call, which is nearly all of it, has its hash.
func (r *recent) hash(c *recentCall) schema.Hashes {
	h := schema.Hashes{Messages: make([]schema.Hash, len(c.messages))}
	done, tools := 0, false
	for _, e := range slices.Backward(*r) {
		if !tools && e.messages != nil && bytes.Equal(e.tools, c.tools) {
			h.Tools, tools = e.hashes.Tools, true
		}
		for done < min(len(e.messages), len(c.messages)) && bytes.Equal(e.messages[done], c.messages[done]) {
			h.Messages[done] = e.hashes.Messages[done]
			done++
		}
	}
	for ; done < len(c.messages); done++ {
		h.Messages[done] = schema.HashMessage(c.messages[done])
	}
	if !tools {
		h.Tools = schema.HashTools(c.tools)
	}
	return h
}

// shares finds the call with the longest common beginning, the newest one
// first.
func (r *recent) shares(c *recentCall) (best schema.Shares) {
	for _, e := range slices.Backward(*r) {
		n := min(len(e.hashes.Messages), len(c.messages))
		keep := 0
		for keep < n && e.hashes.Messages[keep] == c.hashes.Messages[keep] {
			keep++
		}
		if keep > best.Keep {
			best = schema.Shares{Base: e.number, Keep: keep, Tools: e.hashes.Tools == c.hashes.Tools}
		}
		if keep == len(c.messages) {
			break
		}
	}
	return best
}
