package history

import (
	"encoding/json"
	"slices"

	"github.com/turngate/turngate/internal/gate/dialect"
)

// group maps items of a body to messages: the numbers of both up to its end. An
// open group may take in the items that follow.
type group struct {
	items, messages int
	open            bool
}

// fold converts the items of a body to canonical messages, group by group: an
// item may become several messages, and several items one. next converts the
// group that begins at item i. It may read earlier items, and the item after the
// end if the group is open, but no later ones. fold does not convert items again
// that an earlier body shares.
func (p *parts) fold(keep int, next func(p dialect.Parts, i int) (dialect.Group, error)) error {
	n, _ := slices.BinarySearchFunc(p.groups, keep, func(g group, last int) int { return g.items - last - 1 })
	if n > 0 && p.groups[n-1].items == keep && p.groups[n-1].open {
		n--
	}
	at, messages := 0, 0
	if n > 0 {
		at, messages = p.groups[n-1].items, p.groups[n-1].messages
	}
	p.groups = p.groups[:n]
	p.leave(p.first, messages)
	for at < len(p.items) {
		g, err := next(p, at)
		if err != nil {
			return err
		}
		at = max(g.End, at+1)
		p.converted = append(p.converted, g.Messages...)
		p.groups = append(p.groups, group{at, len(p.converted) - p.first, g.Open})
	}
	return nil
}

// messages returns first and the converted items. While a conversation grows,
// its lists share their memory.
func (p *parts) messages(first ...json.RawMessage) []json.RawMessage {
	if len(first) != p.first || sharedStart(first, p.converted) < p.first {
		whole := make([]json.RawMessage, 0, len(first)+len(p.converted)+spareMessages)
		p.converted, p.first = append(append(whole, first...), p.converted[p.first:]...), len(first)
	}
	return p.converted[:len(p.converted):len(p.converted)]
}

// spareMessages is the capacity for messages to come.
const spareMessages = 16

// leave drops messages off the end. Calls still have the dropped ones, so the
// list moves to new memory.
func (p *parts) leave(first, folded int) {
	if n := first + folded; n < len(p.converted) {
		p.converted = append(make([]json.RawMessage, 0, n+spareMessages), p.converted[:n]...)
	}
}
