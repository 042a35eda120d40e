package trajectory

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/turngate/turngate/schema"
)

// maxBack is the number of messages before a call's last one among which its
// parent is looked for.
const maxBack = 4096

// ends finds the calls of which a prompt continues all tokens, prompt and
// completion.
type ends struct {
	lengths []int            // in order
	at      map[mark][]*Call // in the order of their requests
}

// mark identifies a list of tokens.
type mark struct {
	length int
	hash   uint64
}

func (e *ends) add(c *Call) {
	m := mark{c.end(), c.hash}
	if i, ok := slices.BinarySearch(e.lengths, m.length); !ok {
		e.lengths = slices.Insert(e.lengths, i, m.length)
	}
	same := e.at[m]
	i := len(same)
	for i > 0 && same[i-1].index > c.index { // asked later, answered earlier
		i--
	}
	e.at[m] = slices.Insert(same, i, c)
}

// hashOn continues a hash of tokens.
func hashOn(h uint64, ids []byte) uint64 {
	for ; len(ids) >= 4; ids = ids[4:] {
		h = (h ^ uint64(binary.LittleEndian.Uint32(ids))) * 0x9E3779B97F4A7C15
		h ^= h >> 32
	}
	return h
}

// tip is the list of all tokens up to the end of a call.
type tip struct {
	call *Call
	ids  []byte
}

// maxTips is the number of conversations that may take turns without their tokens
// being put together again for each call.
const maxTips = 8

// tokens returns the tokens of a call's row up to the end of its completion. They
// are valid until the next call of grow.
func (r *reader) tokens(c *Call) []byte {
	for i, t := range r.tips {
		if t.call == c {
			r.tips = append(slices.Delete(r.tips, i, i+1), t)
			return t.ids
		}
	}
	var path []*Call
	for p := c; p != nil; p = p.parent {
		if p.hasIDs {
			path = append(path, p)
		}
	}
	var ids []byte
	for _, p := range slices.Backward(path) {
		ids = append(append(ids[:4*p.kept], p.fresh...), p.completion...)
	}
	r.tip(c, ids)
	return ids
}

func (r *reader) tip(c *Call, ids []byte) {
	if len(r.tips) == maxTips {
		r.tips = slices.Delete(r.tips, 0, 1)
	}
	r.tips = append(r.tips, tip{c, ids})
}

// withIDs returns the call if it has ids, else the nearest call with ids before it
// in its row; nil if none has ids.
func withIDs(c *Call) *Call {
	for c != nil && !c.hasIDs {
		c = c.parent
	}
	return c
}

// mayPrecede reports whether c's agent knew the answer of p when it asked.
func mayPrecede(p, c *Call) bool {
	return p.answered && p.committed && p.ended < c.asked
}

// byTokens returns the call with the longest list of tokens, prompt and
// completion, among the calls of which the prompt continues this list. Of several
// with the same length it returns the last one. It tries near first.
func (r *reader) byTokens(c *Call, prompt []byte, near *Call) *Call {
	var best *Call
	h, from := uint64(0), 0
	if near != nil {
		if ids := r.tokens(near); bytes.HasPrefix(prompt, ids) {
			best, h, from = near, near.hash, near.end()
		}
	}
	var places []mark // at which the hash is that of calls
	i, _ := slices.BinarySearch(r.found.lengths, from)
	for _, length := range r.found.lengths[i:] {
		if 4*length > len(prompt) {
			break
		}
		h, from = hashOn(h, prompt[4*from:4*length]), length
		if m := (mark{length, h}); r.found.at[m] != nil {
			places = append(places, m)
		}
	}
	for _, m := range slices.Backward(places) {
		tried := 0
		for _, p := range slices.Backward(r.found.at[m]) {
			if !mayPrecede(p, c) {
				continue
			}
			if p == best {
				return p
			}
			if tried == maxTips { // calls with equal hashes have equal tokens
				break
			}
			if tried++; bytes.HasPrefix(prompt, r.tokens(p)) {
				return p
			}
		}
	}
	return best
}

// byMessages returns the call that c continues by its messages: c has all
// messages of that call, then an answer. same reports whether this answer is
// the model's.
func (r *reader) byMessages(c *Call) (found *Call, same bool) {
	if c.broken {
		return nil, false
	}
	nodes := r.talk.nodes
	for id, n := c.conversation, 0; id != 0 && n < maxBack; id, n = nodes[id].up, n+1 {
		answer := &nodes[id]
		if !answer.assistant {
			continue
		}
		calls := nodes[answer.up].calls
		for _, i := range slices.Backward(calls[max(len(calls)-maxBack, 0):]) {
			p := r.out.Calls[i]
			if p == c || !mayPrecede(p, c) {
				continue
			}
			if p.said.text == answer.text {
				return p, true
			}
			if found == nil {
				found = p
			}
		}
		if found != nil {
			return found, false
		}
	}
	return nil, false
}

// link finds the call's parent and keeps the tokens that the parent's row lacks.
func (r *reader) link(c *Call, prompt schema.TokenIDs) {
	before, same := r.byMessages(c)
	r.join(c, prompt, before, same)
	if c.Merge != MergeRoot && r.o.Merge == MergeFork && c.parent != nil {
		c.parent, c.kept, c.Drift, c.Merge, c.Reason = nil, 0, 0, MergeFork, ReasonPolicy
	}
	if c.Tag == schema.TagAgent && c.answered && c.committed {
		r.agent = c
	}
	if !c.hasIDs {
		return
	}
	c.fresh = slices.Clone(prompt[4*c.kept:])
	r.grow(c)
	if c.committed {
		r.found.add(c)
	}
}

// grow adds a call's tokens to the tip of its parent.
func (r *reader) grow(c *Call) {
	var ids []byte
	if p := withIDs(c.parent); p != nil {
		ids = r.tokens(p) // the last tip now
		r.tips = r.tips[:len(r.tips)-1]
		c.hash = p.hash
		if c.kept < p.end() {
			c.hash = hashOn(0, ids[:4*c.kept])
		}
	}
	c.hash = hashOn(hashOn(c.hash, c.fresh), c.completion)
	r.tip(c, append(append(ids[:4*c.kept], c.fresh...), c.completion...))
}

func (r *reader) join(c *Call, prompt schema.TokenIDs, before *Call, same bool) {
	to := func(p *Call, kept, drift int, merge string) {
		c.parent, c.Parent, c.kept, c.Drift, c.Merge = p, p.Number, kept, drift, merge
	}
	apart := func(p *Call, drift int, reason string) {
		c.Parent, c.Drift, c.Merge, c.Reason = p.Number, drift, MergeFork, reason
	}
	near := withIDs(before)
	if c.hasIDs {
		p := r.byTokens(c, prompt, near)
		if p != nil && !(same && r.drifted(before, near, p, prompt)) {
			kept := p.end()
			if near == p {
				p = before // calls without ids may lie between the two
			}
			to(p, kept, 0, MergeClean)
			return
		}
	}
	switch {
	case before == nil:
		r.begin(c)
	case !c.hasIDs || near == nil:
		if same {
			to(before, 0, 0, MergeClean)
		} else {
			apart(before, 0, ReasonEdit)
		}
	default:
		ids := r.tokens(near)
		kept := common(ids, prompt)
		drift := near.end() - kept
		switch inAnswer := kept >= near.kept+near.fresh.Len(); {
		case inAnswer && r.o.Merge == MergeRealign && (drift <= r.o.MaxLost || !near.trainable):
			to(before, kept, drift, MergeRealign)
		case !same:
			apart(before, drift, ReasonEdit)
		case inAnswer:
			apart(before, drift, ReasonDrift)
		default:
			apart(before, drift, ReasonPrompt)
		}
	}
}

// drifted reports whether the prompt differs from the tokens of near, and before
// stands later in the conversation than p. near has the tokens of before, and the
// prompt begins with all tokens of p. The place of p is not known without its
// messages.
func (r *reader) drifted(before, near, p *Call, prompt []byte) bool {
	return near != nil && near != p && !p.broken && before.messages > p.messages && !bytes.HasPrefix(prompt, r.tokens(near))
}

// begin begins a conversation.
func (r *reader) begin(c *Call) {
	c.Merge = MergeRoot
	switch {
	case c.Tag == schema.TagAux:
		c.Reason = ReasonAux
	case c.Tag == schema.TagSubagent:
		c.Reason = ReasonSubagent
	case r.agent == nil || r.agent.ended >= c.asked || c.broken:
	default:
		c.Merge, c.Parent = MergeFork, r.agent.Number
		switch shared := r.talk.shared(c.conversation, r.agent.conversation); {
		case shared == c.messages:
			c.Reason = ReasonBranch
		case c.messages <= r.agent.messages:
			c.Reason = ReasonCompaction
		default:
			c.Reason = ReasonEdit
		}
	}
}

// common returns the number of tokens with which both lists begin.
func common(a, b []byte) int {
	n := min(len(a), len(b)) &^ 3
	i := 0
	for ; i+64 <= n && bytes.Equal(a[i:i+64], b[i:i+64]); i += 64 {
	}
	for ; i < n && bytes.Equal(a[i:i+4], b[i:i+4]); i += 4 {
	}
	return i / 4
}
