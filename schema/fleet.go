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
	Offer    Offer  `json:"offer"`
}

// FleetOf lists workers by what they announce, without the images that they have.
func FleetOf(all []Presence) Fleet {
	f := Fleet{V: Version}
	for _, p := range all {
		c := Capacity{Worker: p.Worker, Slots: p.Slots, Busy: len(p.Running), Draining: p.Draining, Offer: p.Offer}
		c.Offer.Images = nil // may belong to other trainers, and are many
		f.Workers = append(f.Workers, c)
	}
	return f
}

// Validate checks the message.
func (f *Fleet) Validate() error {
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

// Obstacle is a reason for which workers that are there cannot run a request.
type Obstacle struct {
	Why     string   `json:"why"`
	Workers []string `json:"workers"` // sorted
}

// String names a few of the workers, and the reason.
func (o *Obstacle) String() string {
	names := strings.Join(o.Workers[:min(len(o.Workers), maxNamed)], ", ")
	if more := len(o.Workers) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names + ": " + o.Why
}

// Obstacles lists the reasons for which no worker that is there can run a request with
// these needs, by the name of the first worker. It is nil if a worker can, and if all
// workers are draining or there are none.
func (f *Fleet) Obstacles(n *Needs) []Obstacle {
	var out []Obstacle
	lacking := false
	for _, w := range f.Workers {
		why := w.Obstacle(n)
		if why == "" {
			return nil
		}
		lacking = lacking || !w.Draining
		i := slices.IndexFunc(out, func(o Obstacle) bool { return o.Why == why })
		if i < 0 {
			i, out = len(out), append(out, Obstacle{Why: why})
		}
		out[i].Workers = append(out[i].Workers, w.Worker)
	}
	if !lacking {
		return nil
	}
	for i := range out {
		slices.Sort(out[i].Workers)
	}
	slices.SortFunc(out, func(a, b Obstacle) int { return cmp.Compare(a.Workers[0], b.Workers[0]) })
	return out
}

// Unable says why no worker that is there can run a request with these needs, with a
// line for each reason; empty: one can, all are draining, or none is there. As a single
// line it is readable, too.
func (f *Fleet) Unable(n *Needs) string {
	list := f.Obstacles(n)
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
	able, slots, free := 0, 0, 0
	for _, w := range f.Workers {
		if w.Draining || w.Offer.Meets(&n) != nil {
			continue
		}
		able++
		slots += w.Slots
		free += max(w.Slots-w.Busy, 0)
	}
	switch {
	case len(f.Workers) == 0:
		return "no worker is there"
	case able == 0:
		return "every worker is draining"
	case free == 0:
		return fmt.Sprintf("no slot is free: the workers that could take it (%d) have %d, all busy", able, slots)
	default:
		return fmt.Sprintf("others are before it: %d of %d slots are free", free, slots)
	}
}
