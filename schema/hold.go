package schema

import (
	"fmt"
	"slices"
)

// Hold says which rollouts of one trainer wait before they ask an engine
// themselves, for example while its weights are updated. What was asked before
// goes on. It counts until a newer one, and lapses when it is not repeated.
type Hold struct {
	V        int    `json:"v"`
	Instance string `json:"instance"` // of the trainer's process
	Serial   int64  `json:"serial"`   // grows with each hold of that process
	All      bool   `json:"all,omitempty"`
	IDs      []ID   `json:"ids,omitempty"` // without All; none: nothing waits
}

// Holds reports whether a rollout waits.
func (h *Hold) Holds(id ID) bool { return h.All || slices.Contains(h.IDs, id) }

// Validate checks the message.
func (h *Hold) Validate() error {
	if err := CheckToken("instance", h.Instance); err != nil {
		return err
	}
	if h.Serial < 1 {
		return invalid("serial", h.Serial, "want 1 or more")
	}
	if err := checkCount("ids", len(h.IDs), 10_000); err != nil {
		return err
	}
	for i, id := range h.IDs {
		if _, err := ParseID(string(id)); err != nil {
			return fmt.Errorf("ids[%d]: %w", i, err)
		}
	}
	return nil
}

// AsksAnEngine reports whether calls of this rollout are answered by an engine
// that its worker asks, and not by the trainer.
func (r *Request) AsksAnEngine() bool {
	if r.Mode == ModeProxy {
		return true
	}
	for _, to := range r.Gate.Routes {
		if to.Upstream != "" {
			return true
		}
	}
	return false
}
