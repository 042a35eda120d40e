package schema

import "fmt"

// Cancel asks to end rollouts of one trainer, queued or running. Workers
// check that each is bound to the trainer whose subject it came on.
type Cancel struct {
	V      int    `json:"v"`
	IDs    []ID   `json:"ids"`
	Reason string `json:"reason,omitempty"`
}

// Validate checks the message.
func (c *Cancel) Validate() error {
	if err := checkCount("ids", len(c.IDs), 10_000); err != nil {
		return err
	}
	for i, id := range c.IDs {
		if _, err := ParseID(string(id)); err != nil {
			return fmt.Errorf("ids[%d]: %w", i, err)
		}
	}
	return checkText("reason", c.Reason, 1024)
}
