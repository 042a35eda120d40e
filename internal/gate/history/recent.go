package history

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/turngate/turngate/schema"
)

// Recent has the newest calls of a session, oldest first. A later call is
// compared with all of them, because agents have side conversations, for
// sub-agents and titles, and go back in the main one.
type Recent struct {
	calls   []recentCall
	charged int64 // bytes that are reserved for the calls
}

type recentCall struct {
	number   int
	messages []json.RawMessage // nil: there was no memory for them
	tools    json.RawMessage
	params   schema.SortedMap[json.RawMessage]
	hashes   *schema.Hashes
}

const (
	// maxRecent is the number of calls that a session keeps.
	maxRecent = 6
	// manyMessages is more than the conversations of real agents have.
	manyMessages = 10_000
)

// Place finds the newest call with the longest common beginning, and keeps the
// call of the request under its number. It returns the shared part and the digest
// of the whole call. If there is memory for the hashes of the call only, the
// reader of the request forgets its bodies.
func (r *Recent) Place(number int, q *Request, m *Memory) (shares schema.Shares, digest []byte) {
	call := &q.Call
	c := recentCall{number: number, messages: call.Messages, tools: call.Tools, params: call.Params}
	using := m.scratch()
	c.hashes = r.hash(&c, &using.hasher)
	m.reuse(using)
	shares, digest = r.shares(&c), c.hashes.Digest()
	if len(r.calls) == maxRecent {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, c)
	if !r.charge(r.size()+q.kept, m) {
		last := &r.calls[len(r.calls)-1]
		last.messages, last.tools, last.params = nil, nil, nil
		r.charge(min(r.size(), r.charged), m)
		if len(c.messages) > manyMessages { // no budget counts their hashes
			r.calls = slices.Clone(r.calls[len(r.calls)-1:])
		}
		q.from.Forget()
	}
	return shares, digest
}

// charge changes the reserved memory to want bytes.
func (r *Recent) charge(want int64, m *Memory) bool {
	if want > r.charged && !m.conversations.Reserve(want-r.charged) {
		return false
	}
	m.conversations.Release(max(r.charged-want, 0))
	r.charged = want
	return true
}

// size returns the bytes of the calls. Messages that share memory in several
// calls, as the beginning of a conversation does, count once.
func (r *Recent) size() (n int64) {
	for i := range r.calls {
		c := &r.calls[i]
		shared, tools := 0, false
		for j := i - 1; j >= 0 && shared < len(c.messages); j-- {
			e := &r.calls[j]
			shared = max(shared, sharedStart(e.messages, c.messages))
			tools = tools || sameMemory(e.tools, c.tools)
			if shared == len(e.messages) {
				break
			}
		}
		for _, m := range c.messages[shared:] {
			n += int64(len(m)) + perMessage
		}
		if !tools {
			n += int64(len(c.tools))
		}
	}
	return n
}

// Drop releases the memory.
func (r *Recent) Drop(m *Memory) {
	m.conversations.Release(r.charged)
	*r = Recent{}
}

func sameMemory(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// sharedStart counts the leading messages that share their memory.
func sharedStart(a, b []json.RawMessage) int {
	if len(a) > 0 && len(b) > 0 && &a[0] == &b[0] { // lists that share memory are append-only
		return min(len(a), len(b))
	}
	n := 0
	for n < len(a) && n < len(b) && sameMemory(a[n], b[n]) {
		n++
	}
	return n
}

// hash hashes the new parts of a call. Nearly all of a call is byte for byte the
// same as in an earlier one, and hash reuses the hashes of these parts.
func (r *Recent) hash(c *recentCall, hasher *schema.Hasher) *schema.Hashes {
	h := &schema.Hashes{}
	var tools, params *schema.Hash
	done := 0
	for i := range slices.Backward(r.calls) {
		e := &r.calls[i]
		if e.messages == nil {
			continue
		}
		if tools == nil && (sameMemory(e.tools, c.tools) || bytes.Equal(e.tools, c.tools)) {
			tools = &e.hashes.Tools
		}
		if params == nil && equalParams(e.params, c.params) {
			params = &e.hashes.Params
		}
		from := done
		done = max(done, sharedStart(e.messages, c.messages))
		for done < min(len(e.messages), len(c.messages)) && bytes.Equal(e.messages[done], c.messages[done]) {
			done++
		}
		if from == 0 && done > 0 {
			h = e.hashes.Based(done)
		} else if done > from {
			h.Messages = append(h.Messages, e.hashes.Messages[from:done]...)
		}
		if tools != nil && params != nil && done == len(e.messages) {
			break // the call continues this one
		}
	}
	for _, m := range c.messages[done:] {
		h.Messages = append(h.Messages, hasher.Message(m))
	}
	if tools != nil {
		h.Tools = *tools
	} else {
		h.Tools = hasher.Tools(c.tools)
	}
	if params != nil {
		h.Params = *params
	} else {
		h.Params = hasher.Params(c.params)
	}
	return h
}

func equalParams(a, b schema.SortedMap[json.RawMessage]) bool {
	if reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer() { // unchanged parameters are the same map in each call
		return true
	}
	return maps.EqualFunc(a, b, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// shares returns the call with the longest common beginning; of equal ones, the
// newest.
func (r *Recent) shares(c *recentCall) (best schema.Shares) {
	for i := range slices.Backward(r.calls) {
		e := r.calls[i].hashes
		n := min(len(e.Messages), len(c.messages))
		if n <= best.Keep {
			continue
		}
		keep := sharedStart(r.calls[i].messages, c.messages)
		for keep < n && e.Messages[keep] == c.hashes.Messages[keep] {
			keep++
		}
		if keep > best.Keep {
			best = schema.Shares{Base: r.calls[i].number, Keep: keep, Tools: e.Tools == c.hashes.Tools, Params: e.Params == c.hashes.Params}
		}
	}
	return best
}
