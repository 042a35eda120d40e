package reach

import (
	"context"
	"maps"
	"net"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
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

// Start starts a command in the sandbox. The command ends with the context.
func (k *Held) Start(ctx context.Context, c sandboxes.Cmd) (sandboxes.Process, error) {
	env := maps.Clone(k.env())
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, c.Env)
	c.Env = env
	return box.Over(func() (net.Conn, error) {
		conn, err := k.box.Stream()
		if err != nil {
			return nil, err
		}
		return &stream{conn, context.AfterFunc(ctx, func() { conn.Close() })}, nil
	}, k.info.Workdir).Start(ctx, c)
}
