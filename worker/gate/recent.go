package gate

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/turngate/turngate/schema"
)

// recent is what the newest calls of a session were, oldest first. Later ones
// are compared with all of them: agents have branches, for sub-agents and
// titles, beside the main conversation, and go back in it.
type recent []recentCall

type recentCall struct {
	number   int
	messages []json.RawMessage
	tools    json.RawMessage
	hashes   schema.Hashes
}

// maxRecent is how many calls a session remembers.
const maxRecent = 6

// place finds what a call shares with one of the newest, says what it is in
// all, and remembers it.
func (r *recent) place(number int, call *schema.Call) (schema.Shares, []byte) {
	c := recentCall{number: number, messages: call.Messages, tools: call.Tools}
	c.hashes = r.hash(&c)
	best := r.shares(&c)
	digest := call.DigestOf(c.hashes)
	*r = append(*r, c)
	if len(*r) > maxRecent {
		*r = slices.Delete(*r, 0, 1)
	}
	return best, digest
}

// hash hashes what is new in a call. What is byte for byte as in an earlier
// call, which is nearly all of it, has its hash.
func (r *recent) hash(c *recentCall) schema.Hashes {
	h := schema.Hashes{Messages: make([]schema.Hash, len(c.messages))}
	done, tools := 0, false
	for _, e := range slices.Backward(*r) {
		if !tools && bytes.Equal(e.tools, c.tools) {
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
		n := min(len(e.messages), len(c.messages))
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
