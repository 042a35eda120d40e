package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

func (r *Rollout) create(ctx context.Context, p *record.Phase) (err error) {
	users := []namedUser{{"sandbox.user", ""}, {"agent.user", r.Request.Agent.User}}
	if r.sandbox, err = r.newSandbox(ctx, p, r.Request.Sandbox, "", r.Request.SandboxNetworks(), users); err != nil {
		return err
	}
	if r.clock.stop == nil { // once: after making a snapshot, create runs again
		r.clock.waits = r.waits
		r.clock.follow(ctx, r.Services.Suspended, r.Record.Log)
	}
	if r.agent.Glibc {
		if _, err := r.sandbox.Files().Stat(ctx, agents.Loader()); err != nil {
			return ends.Fail(schema.Faultf("create", schema.CodeMissing, schema.WhoTask,
				"the image lacks %s: %s needs the GNU C library, so take an image that has it (Debian, Ubuntu, Fedora, ...), or the agent mini", agents.Loader(), r.agent.Name))
		}
	}
	return nil
}

// newSandbox makes a sandbox of this rollout. part is empty for the agent's and
// verifierPart for that of a separate verifier. If one of users does not exist in
// the new sandbox, newSandbox closes it and returns a fault of the task.
func (r *Rollout) newSandbox(ctx context.Context, p *record.Phase, s schema.SandboxChoice, part string, networks []string, users []namedUser) (sandboxes.Sandbox, error) {
	q := &r.Request
	backend, err := r.findBackend("sandbox.backend", s.Backend)
	if err != nil {
		return nil, ends.Fail(ends.UserFault(err))
	}
	spec := sandboxes.Spec{
		Owner: r.Owner, Rollout: q.ID, Attempt: r.Attempt, Part: part, Image: s.Image, Network: sandboxNetwork(networks),
		CPUs: cmp.Or(s.CPUs, r.Caps.CPUs), MemoryBytes: cmp.Or(s.MemoryBytes, r.Caps.MemoryBytes), DiskBytes: cmp.Or(s.DiskBytes, r.Caps.DiskBytes), Pids: cmp.Or(s.Pids, r.Caps.Pids), GPUs: s.GPUs,
		Strict: s.Strict, Note: func(limit, text string) { r.noteLimit(&s, limit, text) },
		User: s.User, Workdir: s.Workdir, Env: s.Env,
		Ready: time.Duration(q.Limits.ReadyMS) * time.Millisecond, Life: time.Duration(q.LifeMS()) * time.Millisecond, Lost: lostAfter,
	}
	if len(r.agent.Packages) > 0 && part == "" {
		spec.Mounts = []sandboxes.Mount{{Host: r.Cache.Path(r.agent), Guest: mountedAgents}}
	}
	from := r.boundedBundle()
	if s.Build != nil {
		build, err := r.build(from, s.Build)
		if err != nil {
			return nil, err
		}
		spec.Build = build
	}
	if err := r.addServices(&spec, s, from); err != nil {
		return nil, err
	}
	out := p.Output("build")
	spec.Log = func(line string) { fmt.Fprintln(out, line) }
	making := "it starts"
	switch {
	case s.Build != nil:
		making = "its image is built"
	case s.Image != "":
		making = "its image is pulled, or it starts"
	}
	ready := r.waitsLong(schema.WaitSandbox, s.Image, making)
	if part == "" {
		spec.Snapshot = r.beginning()
	}
	sb, err := backend.Create(ctx, spec)
	for errors.Is(err, sandboxes.ErrNoSnapshot) {
		r.share.drop()
		spec.Snapshot = r.beginning() // nil, or one that another rollout has made since
		sb, err = backend.Create(ctx, spec)
	}
	ready()
	if err != nil {
		return nil, createFault(err)
	}
	for _, u := range users {
		if err := checkUser(ctx, sb.Files(), p.Name, u, false); err != nil {
			r.closeSandbox(ctx, sb)
			return nil, err
		}
	}
	box := newNetbox(sb, &spec, networks, &r.touched)
	r.clock.add(ctx, box, r.Record.Log)
	if err := r.setNetwork(ctx, box, "setup", cmp.Or(s.Network, schema.NetworkNone), s.Allow); err != nil {
		r.closeSandbox(ctx, box)
		return nil, err
	}
	return box, nil
}

// createFault turns an unsupported request or an error of an image into a fault that
// ends the rollout. It returns other errors unchanged.
func createFault(err error) error {
	var no *sandboxes.UnsupportedError
	var image *sandboxes.ImageError
	switch {
	case errors.As(err, &no):
		return ends.Fail(ends.UserFault(no))
	case errors.As(err, &image):
		return ends.Fail(imageFault(image))
	default:
		return err
	}
}

// closeSandbox closes a sandbox, even after the context has ended.
func (r *Rollout) closeSandbox(ctx context.Context, sb sandboxes.Sandbox) {
	r.clock.drop(sb)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	r.stopServices(sb)
	if err := sb.Close(ctx); err != nil {
		r.Record.Log.Error().Err(err).Msg("a sandbox was not removed")
	}
	r.waitServices(sb)
}
