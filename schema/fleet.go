package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fleet lists the live workers for a trainer, without the rollouts of other trainers.
type Fleet struct {
	V       int        `json:"v"`
	Workers []Capacity `json:"workers"`
}

// Capacity is the capacity of one worker.
type Capacity struct {
	Worker   string `json:"worker"`
	Slots    int    `json:"slots"`
	Busy     int    `json:"busy"` // slots in use
	Draining bool   `json:"draining,omitempty"`
	Full     bool   `json:"full,omitempty"` // it takes no request now, though slots may be free, since its host has no room
	Offer    Offer  `json:"offer"`
}

// FleetOf lists workers by their announcements, without their images.
func FleetOf(all []Presence) Fleet {
	f := Fleet{V: Version}
	for _, p := range all {
		c := Capacity{Worker: p.Worker, Slots: p.Slots, Busy: len(p.Running), Draining: p.Draining, Full: p.Full != "", Offer: p.Offer}
		c.Offer.Images = nil // may belong to other trainers, and are many
		f.Workers = append(f.Workers, c)
	}
	return f
}

func (f *Fleet) check() error {
	if err := checkCount("workers", len(f.Workers), maxMessages); err != nil {
		return err
	}
	for i, w := range f.Workers {
		field := fmt.Sprintf("workers[%d]", i)
		if err := CheckToken(field+".worker", w.Worker); err != nil {
			return err
		}
		if w.Slots < 0 || w.Busy < 0 {
			return invalid(field, fmt.Sprintf("%d slots, %d busy", w.Slots, w.Busy), "0 or more")
		}
	}
	return nil
}

// Obstacle says why the worker cannot take a request with these needs even with a free
// slot; empty: it can.
func (c *Capacity) Obstacle(n *Needs) string {
	if err := c.Offer.Meets(n); err != nil {
		return Clip(strings.Join(strings.Fields(err.Error()), " "), maxObstacle)
	}
	if c.Draining {
		return "it is draining"
	}
	return ""
}

// Bounds of the text about obstacles.
const (
	maxObstacles = 16
	maxObstacle  = 400 // bytes of a reason
	maxNamed     = 4   // workers of a reason
)

// obstacle is a reason for which live workers cannot run a request.
type obstacle struct {
	why     string
	workers []string // sorted
}

// String names a few of the workers, and the reason.
func (o *obstacle) String() string {
	names := strings.Join(o.workers[:min(len(o.workers), maxNamed)], ", ")
	if more := len(o.workers) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names + ": " + o.why
}

// obstacles lists the reasons for which no live worker can run a request with these needs, by
// the name of the first worker. It is nil if a worker can, and if all workers are draining or
// there are none.
func (f *Fleet) obstacles(n *Needs) []obstacle {
	var out []obstacle
	lacking := false
	for _, w := range f.Workers {
		why := w.Obstacle(n)
		if why == "" {
			return nil
		}
		lacking = lacking || !w.Draining
		i := slices.IndexFunc(out, func(o obstacle) bool { return o.why == why })
		if i < 0 {
			i, out = len(out), append(out, obstacle{why: why})
		}
		out[i].workers = append(out[i].workers, w.Worker)
	}
	if !lacking {
		return nil
	}
	for i := range out {
		slices.Sort(out[i].workers)
		out[i].workers = slices.Compact(out[i].workers) // a worker may have several processes
	}
	slices.SortFunc(out, func(a, b obstacle) int { return cmp.Compare(a.workers[0], b.workers[0]) })
	return out
}

// Unable says why no live worker can run a request with these needs, with a line for each
// reason; empty: one can, all are draining, or there is none. As a single line it is readable,
// too.
func (f *Fleet) Unable(n *Needs) string {
	list := f.obstacles(n)
	if list == nil {
		return ""
	}
	var lines []string
	for i := range list[:min(len(list), maxObstacles)] {
		lines = append(lines, list[i].String())
	}
	if more := len(list) - maxObstacles; more > 0 {
		lines = append(lines, fmt.Sprintf("%d more reasons", more))
	}
	return "no worker offers what it asks:\n" + strings.Join(lines, ";\n")
}

// Queued explains why a request is still in the queue. It has a line for each reason for
// which no worker can run it.
func (f *Fleet) Queued(r *Request) string {
	n := r.Needs()
	if text := f.Unable(&n); text != "" {
		return text
	}
	able, slots, free, full := f.room(&n)
	switch {
	case len(f.Workers) == 0:
		return "no worker is there"
	case able == 0:
		return "every worker is draining"
	case free == 0 && full > 0:
		return fmt.Sprintf("no room is free: the workers that could take it (%d) are busy, or their hosts are full (%d): turngate worker ls has the reasons", able, full)
	case free == 0:
		return fmt.Sprintf("no slot is free: the workers that could take it (%d) have %d, all busy", able, slots)
	default:
		return fmt.Sprintf("others are before it: %d of %d slots are free", free, slots)
	}
}

// HasFree reports whether a worker that can run a request takes one now.
func (f *Fleet) HasFree(r *Request) bool {
	n := r.Needs()
	_, _, free, _ := f.room(&n)
	return free > 0
}

// room counts the workers that can run a request with these needs, their slots, those that
// are free, and the workers with a free slot and without room.
func (f *Fleet) room(n *Needs) (able, slots, free, full int) {
	old := map[string]int{} // slots that a process of a worker still uses which another one follows
	for _, w := range f.Workers {
		if w.Draining {
			old[w.Worker] += w.Busy
		}
	}
	for _, w := range f.Workers {
		if w.Draining || w.Offer.Meets(n) != nil {
			continue
		}
		able++
		slots += w.Slots
		left := max(w.Slots-w.Busy-old[w.Worker], 0)
		switch {
		case !w.Full:
			free += left
		case left > 0:
			full++
		}
	}
	return able, slots, free, full
}
