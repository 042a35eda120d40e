package trainer

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

const (
	// cancelEvery is the interval of repeated cancels.
	cancelEvery = 3 * time.Second
	// cancelsPerMessage spreads the work over several workers.
	cancelsPerMessage = 200
	// orphaned is the reason of the cancels of orphans.
	orphaned = "the process that submitted it is gone"
)

// cancels asks workers to cancel rollouts, again and again until their results arrive.
type cancels struct {
	*base
	outstanding *outstanding
	mu          sync.Mutex
	orphans     map[schema.ID]uint64 // that are cancelled, with their sequences in the queue; 0: not known
}

// cancel cancels rollouts.
func (c *cancels) cancel(ids []schema.ID, reason string) error {
	if err := schema.Validate(&schema.Cancel{V: schema.Version, Reason: reason}); err != nil {
		return err
	}
	for _, id := range ids {
		c.outstanding.change(id, func(s *submitted) { s.cancel = &reason })
	}
	return c.ask(ids, reason)
}

// cancelThose cancels the outstanding rollouts that are wanted.
func (c *cancels) cancelThose(want func(*schema.Request) bool, reason string) error {
	var ids []schema.ID
	c.outstanding.each(func(s *submitted) {
		if want(&s.request) {
			ids = append(ids, s.request.ID)
		}
	})
	return c.cancel(ids, reason)
}

// orphan has repeat cancel a rollout of another process. The sequence of its message in
// the queue may be 0: not known.
func (c *cancels) orphan(id schema.ID, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.orphans[id] = cmp.Or(seq, c.orphans[id])
}

// ending reports whether an orphan is cancelled.
func (c *cancels) ending(id schema.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, is := c.orphans[id]
	return is
}

// over ends the cancels of an orphan that may have a result.
func (c *cancels) over(id schema.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.orphans, id)
}

func (c *cancels) ask(ids []schema.ID, reason string) error {
	for some := range slices.Chunk(ids, cancelsPerMessage) {
		if err := c.requests.Cancel(some, c.sequences(some), reason); err != nil {
			return err
		}
	}
	return nil
}

// sequences returns the sequence of each rollout's message in the queue; 0: not
// known.
func (c *cancels) sequences(ids []schema.ID) []uint64 {
	out := make([]uint64, len(ids))
	c.mu.Lock()
	for i, id := range ids {
		out[i] = c.orphans[id]
	}
	c.mu.Unlock()
	for i, id := range ids {
		c.outstanding.change(id, func(s *submitted) { out[i] = s.seq })
	}
	return out
}

// repeat sends the cancels of rollouts without a result again.
func (c *cancels) repeat() {
	wanted := map[string][]schema.ID{}
	c.outstanding.each(func(s *submitted) {
		if s.cancel != nil {
			wanted[*s.cancel] = append(wanted[*s.cancel], s.request.ID)
		}
	})
	c.mu.Lock()
	for id := range c.orphans {
		wanted[orphaned] = append(wanted[orphaned], id)
	}
	c.mu.Unlock()
	for reason, ids := range wanted {
		if err := c.ask(ids, reason); err != nil {
			c.cfg.Log.Debug().Err(err).Msg("a cancel was not sent; it is repeated")
		}
	}
}
