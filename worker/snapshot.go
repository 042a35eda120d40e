package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// snapshotPhase is the phase in which a rollout waits for the snapshot of its group,
// or makes it.
const snapshotPhase = "snapshot"

// joinGroup joins the rollouts of the group that share a snapshot. It waits while
// another one makes it.
func (r *Rollout) joinGroup(ctx context.Context) error {
	q := &r.Request
	if !q.Snapshot || r.Snapshots == nil {
		return nil
	}
	key, err := keyOf(q)
	if err != nil {
		return err
	}
	ready := r.waitsLong(schema.WaitSandbox, q.Group, "another rollout of its group runs the setup")
	r.share, err = r.Snapshots.join(ctx, key)
	ready()
	if err != nil {
		return err
	}
	if r.share.never != "" {
		r.noteNoSnapshot(r.share.never)
	}
	return nil
}

// beginning returns the snapshot with which the agent's sandbox begins, if there is one.
func (r *Rollout) beginning() sandboxes.Snapshot {
	if r.share == nil {
		return nil
	}
	return r.share.snapshot
}

// snapshotSetup makes the snapshot of the group if this rollout is its maker. It
// ends the processes that the setup has left, so that all rollouts of the group
// begin equally.
func (r *Rollout) snapshotSetup(ctx context.Context) error {
	if r.share == nil || !r.share.makes {
		return nil
	}
	if !idle(r.sandbox.Argv()) {
		const reason = "the main container runs a command of its own"
		r.share.made(nil, "", reason)
		r.noteNoSnapshot(reason)
		return nil
	}
	return r.phase(ctx, snapshotPhase, r.Request.Limits.SetupMS, func(ctx context.Context, _ *phase) error {
		if err := r.sandbox.KillAll(ctx); err != nil {
			return err
		}
		made, err := r.sandbox.Snapshot(ctx)
		var no *sandboxes.UnsupportedError
		switch {
		case err == nil:
			r.share.made(made, r.Request.ID, "")
		case errors.As(err, &no):
			r.share.made(nil, "", no.Reason)
			r.noteNoSnapshot(no.Reason)
		case errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil:
			return err
		default: // the files are whole, and the next rollout tries again
			r.noteNoSnapshot(err.Error())
		}
		return nil
	})
}

func (r *Rollout) noteNoSnapshot(reason string) {
	r.note("snapshot: %s; this rollout ran its own setup", reason)
}

// sharedFiles notes in a phase of the result that the sandbox began with the files
// of another rollout.
func (r *Rollout) sharedFiles(ctx context.Context) error {
	return r.phase(ctx, snapshotPhase, 0, func(_ context.Context, p *phase) error {
		_, err := fmt.Fprintf(p.output("stdout"), "the sandbox began with the files of rollout %s after its setup\n", r.share.from)
		return err
	})
}
