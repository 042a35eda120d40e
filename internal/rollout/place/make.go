package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// create makes the agent's sandbox.
func (p *Place) create(ctx context.Context, ph *record.Phase) (err error) {
	users := []namedUser{{"sandbox.user", ""}, {"agent.user", p.Request.Agent.User}}
	if p.Main, err = p.newSandbox(ctx, ph, p.Request.Sandbox, "", p.Request.SandboxNetworks(), users); err != nil {
		return err
	}
	p.Stages.Follow(ctx, p.Suspended)
	if p.Agent.Glibc {
		if _, err := p.Main.Files().Stat(ctx, agents.Loader()); err != nil {
			return ends.Fail(schema.Faultf("create", schema.CodeMissing, schema.WhoTask,
				"the image lacks %s: %s needs the GNU C library, so take an image that has it (Debian, Ubuntu, Fedora, ...), or the agent mini", agents.Loader(), p.Agent.Name))
		}
	}
	return nil
}

// newSandbox makes a sandbox of this rollout. part is empty for the agent's and
// verifierPart for that of a separate verifier. If one of users does not exist in
// the new sandbox, newSandbox closes it and returns a fault of the task.
func (p *Place) newSandbox(ctx context.Context, ph *record.Phase, s schema.SandboxChoice, part string, networks []string, users []namedUser) (*Box, error) {
	q := p.Request
	backend, err := FindBackend(p.Backends, "sandbox.backend", s.Backend)
	if err != nil {
		return nil, ends.Fail(ends.UserFault(err))
	}
	spec, err := p.spec(s, part, networks)
	if err != nil {
		return nil, err
	}
	out := ph.Output("build")
	spec.Log = func(line string) { fmt.Fprintln(out, line) }
	making := "it starts"
	switch {
	case s.Build != nil:
		making = "its image is built"
	case s.Image != "":
		making = "its image is pulled, or it starts"
	}
	ready := p.Stages.Waits(schema.WaitSandbox, s.Image, making)
	if part == "" {
		spec.Snapshot = p.share.beginning()
	}
	sb, err := backend.Create(ctx, spec)
	for errors.Is(err, sandboxes.ErrNoSnapshot) {
		p.share.drop()
		spec.Snapshot = p.share.beginning() // nil, or one that another rollout has made since
		sb, err = backend.Create(ctx, spec)
	}
	ready()
	p.Stages.Record.Telemetry.SandboxMade(backend.Name(), outcomeOf(ctx, err))
	if err != nil {
		return nil, createFault(err)
	}
	box := newBox(sb, backend.Name(), &spec, networks, p.Stages, &q.Limits)
	if usd, ok := p.Prices[backend.Name()]; ok {
		box.price = &usd
	}
	if line, ok := sb.(reach.Box); ok {
		box.held = p.Reach.Add(reach.Sandbox{Task: q.Task.Name, Image: s.Image, Backend: backend.Name(), Rollout: q.ID, Part: part, Workdir: sb.Workdir()}, line, box.phaseEnv)
	}
	for _, u := range users {
		if err := checkUser(ctx, sb.Files(), ph.Name, u, false); err != nil {
			box.shut(ctx)
			return nil, err
		}
	}
	p.Stages.Clock.Add(ctx, box, p.Stages.Record.Log)
	if err := box.Enter(ctx, "setup", cmp.Or(s.Network, schema.NetworkNone), s.Allow); err != nil {
		box.shut(ctx)
		return nil, err
	}
	return box, nil
}

// spec describes a sandbox to make, without its snapshot and its log.
func (p *Place) spec(s schema.SandboxChoice, part string, networks []string) (spec sandboxes.Spec, err error) {
	q := p.Request
	spec = sandboxes.Spec{
		Owner: p.Owner, Rollout: q.ID, Attempt: p.Attempt, Part: part, Image: s.Image, Network: sandboxNetwork(networks),
		CPUs: cmp.Or(s.CPUs, p.Caps.CPUs), MemoryBytes: cmp.Or(s.MemoryBytes, p.Caps.MemoryBytes), DiskBytes: cmp.Or(s.DiskBytes, p.Caps.DiskBytes), Pids: cmp.Or(s.Pids, p.Caps.Pids), GPUs: s.GPUs,
		Strict: s.Strict, Note: func(limit, text string) { noteLimit(p.Stages.Record, &s, limit, text) },
		User: s.User, Workdir: s.Workdir, Env: s.Env, Container: s.Container,
		Ready: stage.MS(q.Limits.ReadyMS), Life: stage.MS(q.LifeMS()) + p.KeepFor, Lost: lostAfter,
	}
	if len(p.Agent.Packages) > 0 && part == "" {
		spec.Mounts = []sandboxes.Mount{{Host: p.Cache.Path(p.Agent), Guest: Installed}}
	}
	from := newSources(q.Task.Name, p.Bundle)
	if s.Build != nil {
		if spec.Build, err = from.build(s.Build); err != nil {
			return spec, err
		}
	}
	if spec.Files, err = from.files(s.Container); err != nil {
		return spec, err
	}
	if spec.Folders, err = from.folders(s.Folders); err != nil {
		return spec, err
	}
	spec.Services, err = from.services(s.Services)
	return spec, err
}

// outcomeOf tells how the creation of a sandbox ended. A limit of the phase that is over
// is a failure of the host.
func outcomeOf(ctx context.Context, err error) telemetry.SandboxOutcome {
	var no *sandboxes.UnsupportedError
	var image *sandboxes.ImageError
	var late *ends.Overtime
	switch {
	case err == nil:
		return telemetry.SandboxCreated
	case errors.As(err, &no), errors.As(err, &image):
		return telemetry.SandboxRefused
	case ctx.Err() != nil && !errors.As(context.Cause(ctx), &late):
		return telemetry.SandboxCancelled
	default:
		return telemetry.SandboxFailed
	}
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

// makeSecond makes the sandbox of a step's separate verifier.
func (p *Place) makeSecond(ctx context.Context, s *plan.Step) error {
	q, choice := p.Request, *s.Verify.Separate
	err := p.Stages.Run(ctx, s.Phase("verify-create"), q.Limits.InstallMS+q.Limits.ReadyMS, func(ctx context.Context, ph *record.Phase) (err error) {
		network, _ := q.VerifyNetwork(s.Verify)
		p.second, err = p.newSandbox(ctx, ph, choice, verifierPart, []string{cmp.Or(choice.Network, schema.NetworkNone), network},
			[]namedUser{{s.Field("verify.separate.user"), ""}, {s.Field("verify.user"), s.Verify.User}})
		return err
	})
	return buildFault(ctx, err, &choice, q.Limits.InstallMS)
}

// noteLimit notes a limit of the request that is not enforced. Limits that the
// request does not name get no note.
func noteLimit(rec *record.Record, s *schema.SandboxChoice, limit, text string) {
	named := map[string]bool{schema.LimitCPUs: s.CPUs > 0, schema.LimitMemory: s.MemoryBytes > 0, schema.LimitDisk: s.DiskBytes > 0, schema.LimitPids: s.Pids > 0}
	if named[limit] {
		rec.Note("%s", text)
	}
}

// verifierPart is the Part of a rollout's second sandbox.
const verifierPart = "verifier"

// FindBackend returns the backend that a field of a request names.
func FindBackend(all []sandboxes.Backend, field, name string) (sandboxes.Backend, error) {
	i := slices.IndexFunc(all, func(b sandboxes.Backend) bool { return b.Name() == name })
	if i < 0 {
		var names []string
		for _, b := range all {
			names = append(names, b.Name())
		}
		return nil, &schema.InvalidError{Field: field, Value: name, Want: fmt.Sprintf("one of %v", names)}
	}
	return all[i], nil
}
