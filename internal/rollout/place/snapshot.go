package place

import (
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
func (p *Place) joinGroup(ctx context.Context) error {
	q := p.Request
	if !q.Snapshot || q.Group == "" || p.Snapshots == nil || p.Snapshots.max < 0 {
		return nil
	}
	return p.Stages.Run(ctx, joinPhase, 0, func(ctx context.Context, ph *record.Phase) error {
		key, err := keyOf(q)
		if err != nil {
			return err
		}
		ready := p.Stages.Waits(schema.WaitSandbox, "", "another rollout of its group runs the setup")
		p.share, err = p.Snapshots.join(ctx, key)
		ready()
		if err != nil {
			return err
		}
		text := "each rollout of the group runs its own setup"
		switch {
		case p.share.makes:
			text = "this rollout makes the snapshot of its group"
		case p.share.snapshot != nil:
			text = fmt.Sprintf("the sandbox begins with the files of rollout %s after its setup", p.share.from)
		}
		_, _ = fmt.Fprintln(ph.Output("stdout"), text)
		return nil
	})
}

// shareSetup runs after this rollout's own setup. It ends the processes that the setup
// has left. The maker also copies its sandbox and goes on in a new one that begins with
// the copy: a copy lacks some attributes of files, and files that the backend mounts,
// and the maker must have no more than the other rollouts.
func (p *Place) shareSetup(ctx context.Context) error {
	if p.share == nil {
		return nil
	}
	if !p.share.makes {
		p.share.noteOwnSetup(p.Stages.Record)
		return p.Main.KillAll(ctx)
	}
	limits := p.Request.Limits
	err := p.Stages.Run(ctx, copyPhase, limits.InstallMS+limits.ReadyMS+copyWithin.Milliseconds(), func(ctx context.Context, ph *record.Phase) error {
		if err := p.Main.KillAll(ctx); err != nil {
			return err
		}
		made, err := p.copySandbox(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, sandboxes.ErrLost):
			return err
		case err != nil:
			p.share.publish(nil, "", err.Error())
			p.share.noteOwnSetup(p.Stages.Record)
			return nil
		}
		if err := p.beginAgain(ctx, ph, made); err != nil {
			p.share.fail(made, ctx.Err() == nil)
			return err
		}
		p.share.publish(made, p.Request.ID, "")
		return nil
	})
	return buildFault(ctx, err, &p.Request.Sandbox, limits.InstallMS)
}

// beginAgain replaces the agent's sandbox by one that begins with a snapshot.
func (p *Place) beginAgain(ctx context.Context, ph *record.Phase, from sandboxes.Snapshot) error {
	p.Main.shut(ctx)
	p.Main, p.share.snapshot = nil, from
	if err := p.create(ctx, ph); err != nil {
		return err
	}
	if p.share.snapshot == nil {
		return sandboxes.ErrNoSnapshot
	}
	return nil
}

// copySandbox copies the agent's sandbox. It fails after copyWithin.
func (p *Place) copySandbox(ctx context.Context) (sandboxes.Snapshot, error) {
	ctx, cancel := p.Stages.Clock.Limit(ctx, copyWithin, fmt.Errorf("the copy took longer than %s", copyWithin))
	defer cancel()
	made, err := p.Main.Snapshot(ctx, p.Snapshots.max)
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
func (p *Place) leaveGroup() {
	if p.share == nil || p.share.beginning() != nil {
		return
	}
	reason := ""
	var no *sandboxes.UnsupportedError
	switch err := p.Main.CanSnapshot(); {
	case runsServices(p.Main, &p.Request.Sandbox):
		reason = "the sandbox runs services"
	case errors.As(err, &no):
		reason = no.Reason
	default:
		return
	}
	if p.share.makes {
		p.share.publish(nil, "", reason)
	}
	p.share.noteOwnSetup(p.Stages.Record)
	p.share.leave()
	p.share = nil
}
