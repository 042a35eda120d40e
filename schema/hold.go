package schema

import (
	"fmt"
	"slices"
)

// Hold lists the rollouts of one trainer that must not send new calls to an
// upstream, for example during an update of its weights. Open calls go
// on. A hold is valid until a newer one, and lapses when it is not repeated.
type Hold struct {
	V        int    `json:"v"`
	Instance string `json:"instance"` // of the trainer's process
	Serial   int64  `json:"serial"`   // grows with each hold of that process
	All      bool   `json:"all,omitempty"`
	IDs      []ID   `json:"ids,omitempty"` // used without All; empty: no rollout waits
}

// Holds reports whether the hold covers a rollout.
func (h *Hold) Holds(id ID) bool { return h.All || slices.Contains(h.IDs, id) }

func (h *Hold) check() error {
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

// UsesUpstream reports whether the worker sends calls of this rollout to an
// upstream instead of the trainer.
func (r *Request) UsesUpstream() bool {
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
