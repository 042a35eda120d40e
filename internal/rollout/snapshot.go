package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Phases of a request with a snapshot.
const (
	joinPhase = "snapshot"      // the wait for the snapshot of the group
	copyPhase = "snapshot/copy" // of the maker, after its setup
)

// copyWithin bounds the copy of a sandbox. Without a copy in time, every rollout of
// the group runs its own setup.
const copyWithin = 3 * time.Minute

// joinGroup joins the group of the request. If another rollout is making the snapshot,
// it waits; if there is none yet, this rollout becomes the maker.
func (r *Rollout) joinGroup(ctx context.Context) error {
	q := &r.Request
	if !q.Snapshot || q.Group == "" || r.Snapshots == nil || r.Snapshots.max < 0 {
		return nil
	}
	return r.phase(ctx, joinPhase, 0, func(ctx context.Context, p *record.Phase) error {
		key, err := keyOf(q)
		if err != nil {
			return err
		}
		ready := r.waitsLong(schema.WaitSandbox, "", "another rollout of its group runs the setup")
		r.share, err = r.Snapshots.join(ctx, key)
		ready()
		if err != nil {
			return err
		}
		text := "each rollout of the group runs its own setup"
		switch {
		case r.share.makes:
			text = "this rollout makes the snapshot of its group"
		case r.share.snapshot != nil:
			text = fmt.Sprintf("the sandbox begins with the files of rollout %s after its setup", r.share.from)
		}
		_, _ = fmt.Fprintln(p.Output("stdout"), text)
		return nil
	})
}

// beginning returns the snapshot with which the agent's sandbox begins, if there is one.
func (r *Rollout) beginning() sandboxes.Snapshot {
	if r.share == nil {
		return nil
	}
	return r.share.snapshot
}

// shareSetup runs after this rollout's own setup. It ends the processes that the setup
// has left. The maker also copies its sandbox and goes on in a new one that begins with
// the copy: a copy lacks some attributes of files, and files that the backend mounts,
// and the maker must have no more than the other rollouts.
func (r *Rollout) shareSetup(ctx context.Context) error {
	if r.share == nil {
		return nil
	}
	if !r.share.makes {
		r.noteOwnSetup()
		return r.sandbox.KillAll(ctx)
	}
	limits := r.Request.Limits
	err := r.phase(ctx, copyPhase, limits.InstallMS+limits.ReadyMS+copyWithin.Milliseconds(), func(ctx context.Context, p *record.Phase) error {
		if err := r.sandbox.KillAll(ctx); err != nil {
			return err
		}
		made, err := r.copySandbox(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, sandboxes.ErrLost):
			return err
		case err != nil:
			r.share.publish(nil, "", err.Error())
			r.noteOwnSetup()
			return nil
		}
		if err := r.beginAgain(ctx, p, made); err != nil {
			r.share.fail(made, ctx.Err() == nil)
			return err
		}
		r.share.publish(made, r.Request.ID, "")
		return nil
	})
	return r.buildFault(ctx, err, &r.Request.Sandbox)
}

// beginAgain replaces the agent's sandbox by one that begins with a snapshot.
func (r *Rollout) beginAgain(ctx context.Context, p *record.Phase, from sandboxes.Snapshot) error {
	r.closeSandbox(ctx, r.sandbox)
	r.sandbox, r.share.snapshot = nil, from
	if err := r.create(ctx, p); err != nil {
		return err
	}
	if r.share.snapshot == nil {
		return sandboxes.ErrNoSnapshot
	}
	return nil
}

// copySandbox copies the agent's sandbox. It fails after copyWithin.
func (r *Rollout) copySandbox(ctx context.Context) (sandboxes.Snapshot, error) {
	ctx, cancel := r.clock.limit(ctx, copyWithin, fmt.Errorf("the copy took longer than %s", copyWithin))
	defer cancel()
	made, err := r.sandbox.Snapshot(ctx, r.Snapshots.max)
	var no *sandboxes.UnsupportedError
	switch {
	case errors.As(err, &no):
		return nil, errors.New(no.Reason)
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return made, err
}

// leaveGroup leaves the group right after the start if the sandbox cannot be copied.
// The other rollouts need not wait then.
func (r *Rollout) leaveGroup() {
	if r.share == nil || r.beginning() != nil {
		return
	}
	reason := ""
	var no *sandboxes.UnsupportedError
	switch err := r.sandbox.CanSnapshot(); {
	case runsServices(r.sandbox, &r.Request.Sandbox):
		reason = "the sandbox runs services"
	case errors.As(err, &no):
		reason = no.Reason
	default:
		return
	}
	if r.share.makes {
		r.share.publish(nil, "", reason)
	}
	r.noteOwnSetup()
	r.share.leave()
	r.share = nil
}

func (r *Rollout) noteOwnSetup() {
	r.Record.Note("snapshot: %s; this rollout ran its own setup", cmp.Or(r.share.whyNone, "it is gone"))
}
