package trajectory

import (
	"encoding/json"
	"math"
	"slices"
)

// maxExported bounds the prompts of all calls in one export, in bytes of JSON or
// of packed ids. A prompt has the whole conversation, so they grow with the square
// of its length.
const maxExported = 256 << 20

// whole gives calls their complete prompts within maxExported.
type whole struct {
	calls map[int]*Call
	left  int
	short int // number of calls for which the prompt was left out
}

func newWhole(t *Rollout) *whole {
	w := &whole{calls: map[int]*Call{}, left: maxExported}
	for _, c := range t.Calls {
		w.calls[c.Number] = c
	}
	return w
}

// spend reports whether there is room for so many bytes.
func (w *whole) spend(n int) bool {
	if n > w.left {
		w.short++
		return false
	}
	w.left -= n
	return true
}

// prompt returns all prompt ids of a call; nil if it has none, or no room is left.
func (w *whole) prompt(c *Call) []int32 {
	if !c.hasIDs || !w.spend(4*c.Prompt) {
		return nil
	}
	var path []*Call
	for p := c; p != nil; p = p.parent {
		if p.hasIDs {
			path = append(path, p)
		}
	}
	ids := make([]int32, 0, c.Prompt)
	for _, p := range slices.Backward(path) {
		ids = p.fresh.AppendTo(ids[:p.kept])
		if p != c {
			ids = p.completion.AppendTo(ids)
		}
	}
	return ids
}

// messages returns all messages of a call's request; nil if they are not known, or
// no room is left.
func (w *whole) messages(c *Call) []json.RawMessage {
	type part struct {
		call *Call
		keep int
	}
	keep := math.MaxInt
	var parts []part
	size := 0
	for p := c; ; p = w.calls[p.Base] {
		if p == nil || p.broken {
			return nil
		}
		own := max(min(len(p.Messages), keep-p.Keep), 0)
		for _, m := range p.Messages[:own] {
			size += len(m) + 1
		}
		parts = append(parts, part{p, own})
		if keep = min(keep, p.Keep); p.Base == 0 {
			break
		}
	}
	if !w.spend(size) {
		return nil
	}
	var out []json.RawMessage
	for _, p := range slices.Backward(parts) {
		out = append(out, p.call.Messages[:p.keep]...)
	}
	return out
}
