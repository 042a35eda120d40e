package console

import (
	"cmp"
	"container/list"
	"slices"
	"sync"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// maxRows is the largest number of rollouts that a console remembers. The ones that
// changed first are forgotten first.
const maxRows = 200_000

// table has the rows of all rollouts in the order of their last changes.
type table struct {
	mu      sync.Mutex
	rows    map[string]*list.Element // by the rollout
	order   *list.List               // of change, the last one at the back
	last    uint64                   // number of the last change
	changed chan struct{}            // is closed at the next change
	trouble string                   // the reason for which rollouts cannot be read; empty: none
}

// change is a row with the number of its last change: 1, 2, ...
type change struct {
	n   uint64
	row Row
}

func newTable() *table {
	return &table{rows: map[string]*list.Element{}, order: list.New(), changed: make(chan struct{})}
}

// set adds a row. It replaces the one of the same rollout, and those in row.Replaces.
func (t *table) set(row Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range row.Replaces {
		if e := t.rows[id]; e != nil {
			t.order.Remove(e)
			delete(t.rows, id)
		}
	}
	if e := t.rows[row.ID]; e != nil {
		t.order.Remove(e)
	} else if len(t.rows) == maxRows {
		first := t.order.Remove(t.order.Front()).(change) //nolint:errcheck // the list has no other type
		delete(t.rows, first.row.ID)
	}
	t.last++
	t.rows[row.ID] = t.order.PushBack(change{t.last, row})
	t.wake()
}

// seqs returns the sequences of rollouts' messages in their queue; 0: it is not known.
func (t *table) seqs(ids []schema.ID) []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]uint64, len(ids))
	for i, id := range ids {
		if e := t.rows[string(id)]; e != nil {
			out[i] = e.Value.(change).row.seq //nolint:errcheck // the list has no other type
		}
	}
	return out
}

// setTrouble sets the reason for which rollouts cannot be read; nil: they can.
func (t *table) setTrouble(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trouble = ""
	if err != nil {
		t.trouble = plain.Line(err.Error(), maxFault)
	}
	t.wake()
}

func (t *table) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// view is the table as one browser sees it.
type view struct {
	changes []change // behind the ones that the browser has, in their order
	trouble string
	changed <-chan struct{}
}

// after returns the changes with numbers above n.
func (t *table) after(n uint64) view {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := view{changed: t.changed, trouble: t.trouble}
	for e := t.order.Back(); e != nil; e = e.Prev() {
		c := e.Value.(change) //nolint:errcheck // the list has no other type
		if c.n <= n {
			break
		}
		v.changes = append(v.changes, c)
	}
	slices.Reverse(v.changes)
	return v
}

// group returns the rows of a trainer's group, by their indexes.
func (t *table) group(trainer, group string) []Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Row
	for e := t.order.Front(); e != nil; e = e.Next() {
		c := e.Value.(change) //nolint:errcheck // the list has no other type
		if c.row.Trainer == trainer && c.row.Group == group {
			out = append(out, c.row)
		}
	}
	slices.SortFunc(out, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID)) })
	return out
}
