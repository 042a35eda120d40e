package schema

import "fmt"

// Cancel asks to end rollouts of one trainer, queued or running. Workers check
// that each id belongs to the trainer that the message's subject names.
type Cancel struct {
	V      int    `json:"v"`
	IDs    []ID   `json:"ids"`
	Reason string `json:"reason,omitempty"` // becomes a part of the message of the result's fault
	// Seqs has the sequences of the rollouts' messages in the trainer's queue, in
	// the order of IDs; 0: not known. A worker looks for the others in the queue.
	Seqs []uint64 `json:"seqs,omitempty"`
}

func (c *Cancel) check() error {
	if err := checkCount("ids", len(c.IDs), 10_000); err != nil {
		return err
	}
	if len(c.Seqs) > 0 && len(c.Seqs) != len(c.IDs) {
		return invalid("seqs", fmt.Sprintf("%d for %d ids", len(c.Seqs), len(c.IDs)), "want none, or one for each id")
	}
	for i, id := range c.IDs {
		if _, err := ParseID(string(id)); err != nil {
			return fmt.Errorf("ids[%d]: %w", i, err)
		}
	}
	return checkText("reason", c.Reason, 1024)
}
