package gate

import (
	"encoding/json"
	"slices"
)

// group says up to where the items of a body became which messages. What
// follows an open one may belong to it.
type group struct {
	items, messages int
	open            bool
}

// fold turns the items of a body into canonical messages, group by group: an
// item may become several messages, and several items one. next converts the
// group that begins at an item and says where it ends, and whether the item
// behind it may still belong to it; it may look back at earlier items, but not
// ahead of its end. What an earlier body shares with this one is not converted
// again.
func (p *parts) fold(keep int, next func(i int) (end int, open bool, messages []json.RawMessage, err error)) error {
	n, _ := slices.BinarySearchFunc(p.groups, keep, func(g group, last int) int { return g.items - last - 1 })
	if n > 0 && p.groups[n-1].items == keep && p.groups[n-1].open {
		n--
	}
	at, said := 0, 0
	if n > 0 {
		at, said = p.groups[n-1].items, p.groups[n-1].messages
	}
	p.groups = p.groups[:n]
	p.leave(p.first, said)
	for at < len(p.items) {
		end, open, messages, err := next(at)
		if err != nil {
			return err
		}
		p.said = append(p.said, messages...)
		p.groups = append(p.groups, group{end, len(p.said) - p.first, open})
		at = end
	}
	return nil
}

// messages lists what comes first, and what the items became. While a
// conversation grows it is the same memory, call after call.
func (p *parts) messages(first ...json.RawMessage) []json.RawMessage {
	if len(first) != p.first || sharedStart(first, p.said) < p.first {
		whole := make([]json.RawMessage, 0, len(first)+len(p.said)+spareMessages)
		p.said, p.first = append(append(whole, first...), p.said[p.first:]...), len(first)
	}
	return p.said[:len(p.said):len(p.said)]
}

// spareMessages is room for those to come.
const spareMessages = 16

// leave drops messages off the end. Calls have what is dropped, so what follows
// goes elsewhere.
func (p *parts) leave(first, folded int) {
	if n := first + folded; n < len(p.said) {
		p.said = append(make([]json.RawMessage, 0, n+spareMessages), p.said[:n]...)
	}
}
