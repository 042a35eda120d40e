package reach

import (
	"context"
	"net"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/schema"
)

// Newest returns the sandbox of a rollout that was made last; nil: it has none.
func (h *Host) Newest(rollout schema.ID) *Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found *Held
	for _, k := range h.all {
		if k.info.Rollout == rollout && (found == nil || k.info.Made.After(found.info.Made)) {
			found = k
		}
	}
	return found
}

// Part returns the part of its rollout that the sandbox is for, as in Sandbox.
func (k *Held) Part() string { return k.info.Part }

// Relay serves one command of a person elsewhere on a connection, as box.Relay does.
func (k *Held) Relay(ctx context.Context, conn net.Conn, began func(user string, args []string)) (*schema.Exit, error) {
	return box.Relay(ctx, conn, k.box.Stream, k.env(), began)
}
