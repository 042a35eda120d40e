package schema

import "fmt"

// Fleet lists the live workers for a trainer. It has neither their names nor
// the rollouts of other trainers.
type Fleet struct {
	V       int        `json:"v"`
	Workers []Capacity `json:"workers"`
}

// Capacity is the capacity of one worker.
type Capacity struct {
	Slots    int   `json:"slots"`
	Busy     int   `json:"busy"` // slots in use
	Draining bool  `json:"draining,omitempty"`
	Offer    Offer `json:"offer"`
}

// Validate checks the message.
func (f *Fleet) Validate() error {
	for i, w := range f.Workers {
		if w.Slots < 0 || w.Busy < 0 {
			return invalid(fmt.Sprintf("workers[%d]", i), fmt.Sprintf("%d slots, %d busy", w.Slots, w.Busy), "0 or more")
		}
	}
	return checkCount("workers", len(f.Workers), maxMessages)
}

// Unable says why no worker that is there can run a request; empty: one can, or none is
// there.
func (f *Fleet) Unable(r *Request) string {
	var lacks error
	for _, w := range f.Workers {
		if w.Draining {
			continue
		}
		if lacks = w.Offer.Lacks(r); lacks == nil {
			return ""
		}
	}
	if lacks == nil {
		return ""
	}
	return unable(lacks)
}

func unable(lacks error) string { return fmt.Sprintf("no worker offers what it asks: %v", lacks) }

// Queued explains in a few words why a request is still in the queue.
func (f *Fleet) Queued(r *Request) string {
	able, slots, free := 0, 0, 0
	var lacks error
	for _, w := range f.Workers {
		if w.Draining {
			continue
		}
		if err := w.Offer.Lacks(r); err != nil {
			lacks = err
			continue
		}
		able++
		slots += w.Slots
		free += max(w.Slots-w.Busy, 0)
	}
	switch {
	case len(f.Workers) == 0:
		return "no worker is there"
	case able == 0 && lacks != nil:
		return unable(lacks)
	case able == 0:
		return "every worker is stopping"
	case free == 0:
		return fmt.Sprintf("no slot is free: the workers that could take it (%d) have %d, all busy", able, slots)
	default:
		return fmt.Sprintf("others are before it: %d of %d slots are free", free, slots)
	}
}
