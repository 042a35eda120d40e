package gate

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/turngate/turngate/schema"
)

// Memory is what the sessions of a worker share. It bounds the conversations
// that they keep to compare later calls with. Beyond it only their hashes are
// kept: calls still travel as what is new, but all of them is read and hashed
// again.
type Memory struct {
	limit int64
	used  atomic.Int64
	watch *watch

	seed      maphash.Seed // of what tells bodies from each other
	bodies    sync.Pool    // of *[]byte
	scratches sync.Pool    // of *scratch
}

// NewMemory is a bound in bytes.
func NewMemory(limit int64) *Memory {
	return &Memory{limit: limit, seed: maphash.MakeSeed(), watch: newWatch(Timing{}.withDefaults())}
}

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

// body is a buffer of n bytes with anything in it. It may be kept, so it is not
// much larger than that.
func (m *Memory) body(n int) []byte {
	if b, _ := m.bodies.Get().(*[]byte); b != nil && cap(*b) >= n {
		if cap(*b) <= 2*n+(64<<10) {
			return (*b)[:n]
		}
		m.bodies.Put(b)
	}
	return make([]byte, n, n+n/4) // the next one is a little longer
}

func (m *Memory) scratch() *scratch {
	if s, _ := m.scratches.Get().(*scratch); s != nil {
		return s
	}
	return &scratch{}
}

// recycle takes a buffer that nobody uses any more.
func (m *Memory) recycle(b []byte) {
	if cap(b) > 0 {
		m.bodies.Put(&b)
	}
}

// recent is what the newest calls of a session were, oldest first. Later ones
// are compared with all of them: agents have branches, for sub-agents and
// titles, beside the main conversation, and go back in it.
type recent struct {
	calls   []recentCall
	charged int64 // bytes that are reserved for them
}

type recentCall struct {
	number   int
	messages []json.RawMessage // nil: there was no room
	tools    json.RawMessage
	params   schema.SortedMap[json.RawMessage]
	hashes   *schema.Hashes
}

// maxRecent is how many calls a session remembers.
const maxRecent = 6

// place finds what a call shares with one of the newest, says what it is in
// all, and remembers it. fresh are the hashes of its last messages, as far as
// they are known. kept is what else its session keeps of it. fits is
// false when there was no room for more than its hashes.
func (r *recent) place(number int, call *schema.Call, fresh []schema.Hash, kept int64, m *Memory) (shares schema.Shares, digest []byte, fits bool) {
	c := recentCall{number: number, messages: call.Messages, tools: call.Tools, params: call.Params}
	using := m.scratch()
	c.hashes = r.hash(&c, fresh, &using.hasher)
	m.scratches.Put(using)
	shares, digest = r.shares(&c), c.hashes.Digest()
	if len(r.calls) == maxRecent {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, c)
	if fits = r.charge(r.size()+kept, m); !fits {
		last := &r.calls[len(r.calls)-1]
		last.messages, last.tools, last.params = nil, nil, nil
		r.charge(min(r.size(), r.charged), m)
	}
	return shares, digest, fits
}

// charge reserves as many bytes as are wanted now.
func (r *recent) charge(want int64, m *Memory) bool {
	if want > r.charged && !m.reserve(want-r.charged) {
		return false
	}
	m.release(max(r.charged-want, 0))
	r.charged = want
	return true
}

// size is how many bytes the messages have. Those that are the same memory in
// several calls, as the beginning of a conversation is, count once.
func (r *recent) size() (n int64) {
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
			n += int64(len(m))
		}
		if !tools {
			n += int64(len(c.tools))
		}
	}
	return n
}

// drop gives the memory back.
func (r *recent) drop(m *Memory) {
	m.release(r.charged)
	*r = recent{}
}

func sameMemory(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// sharedStart counts the messages that are the very same bytes in memory.
func sharedStart(a, b []json.RawMessage) int {
	if len(a) > 0 && len(b) > 0 && &a[0] == &b[0] { // lists that share memory are only ever appended to
		return min(len(a), len(b))
	}
	n := 0
	for n < len(a) && n < len(b) && sameMemory(a[n], b[n]) {
		n++
	}
	return n
}

// hash hashes what is new in a call. What is byte for byte as in an earlier
// call, which is nearly all of it, has its hash.
func (r *recent) hash(c *recentCall, fresh []schema.Hash, hasher *schema.Hasher) *schema.Hashes {
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
			break // it goes on from this one
		}
	}
	known := len(c.messages) - len(fresh)
	for i, m := range c.messages[done:] {
		if at := done + i - known; at >= 0 {
			h.Messages = append(h.Messages, fresh[at])
		} else {
			h.Messages = append(h.Messages, hasher.Message(m))
		}
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
	if reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer() { // what does not change is one map, call after call
		return true
	}
	return maps.EqualFunc(a, b, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// shares finds the call with the longest common beginning, the newest one
// first.
func (r *recent) shares(c *recentCall) (best schema.Shares) {
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
