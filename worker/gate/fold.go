package gate

import (
	"encoding/json"
	"slices"
)

// foldedTo is what the items up to one of them became.
type foldedTo struct {
	end      int // items
	messages []json.RawMessage
}

// fold turns the items of a body into canonical messages, group by group: an
// item may become several messages, and several items one. next converts the
// group that begins at an item and says where it ends; it may look back at
// earlier items, but not ahead of its end. What the last body shares with this
// one is not converted again.
func (p *parts) fold(last *parts, keep int, next func(i int) (end int, messages []json.RawMessage, err error)) error {
	at := 0
	if keep > 0 {
		for _, g := range last.folded {
			if g.end >= keep { // the next item may belong to it
				break
			}
			p.folded = append(p.folded, g)
			at = g.end
		}
	}
	for at < len(p.items) {
		end, messages, err := next(at)
		if err != nil {
			return err
		}
		p.folded = append(p.folded, foldedTo{end, messages})
		at = end
	}
	return nil
}

// messages lists what the items became, behind what comes first.
func (p *parts) messages(first ...json.RawMessage) []json.RawMessage {
	n := len(first)
	for _, g := range p.folded {
		n += len(g.messages)
	}
	all := slices.Grow(first, n-len(first))
	for _, g := range p.folded {
		all = append(all, g.messages...)
	}
	return all
}
