package place

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"sync"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// addServices adds the files, folders and side-cars of a sandbox.
func (p *Place) addServices(spec *sandboxes.Spec, s schema.SandboxChoice, from *boundedBundle) (err error) {
	if spec.Files, err = p.filesIn(s.Container, from); err != nil {
		return err
	}
	spec.Container = s.Container
	for _, f := range s.Folders {
		folder := sandboxes.Folder{Name: f.Name, Seed: f.Seed && f.From == ""}
		if f.From != "" {
			if !p.Bundle.Has(f.From) {
				return ends.Fail(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, "sandbox.folders: the task's bundle has no %s", f.From))
			}
			packed, err := from.Tar(f.From)
			if err != nil {
				return ends.Fail(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, "%v", err))
			}
			folder.Tar = packed
		}
		spec.Folders = append(spec.Folders, folder)
	}
	for _, one := range s.Services {
		sub := sandboxes.Spec{
			Image: one.Image, CPUs: one.CPUs, MemoryBytes: one.MemoryBytes, Pids: one.Pids, User: one.User, Workdir: one.Workdir, Env: one.Env,
			Container: one.Container,
		}
		if sub.Files, err = p.filesIn(one.Container, from); err != nil {
			return err
		}
		if one.Build != nil {
			if sub.Build, err = p.build(from, one.Build); err != nil {
				return err
			}
		}
		spec.Services = append(spec.Services, sandboxes.Service{Name: one.Name, Aliases: one.Aliases, Spec: sub})
	}
	return nil
}

func (p *Place) filesIn(c schema.Container, from *boundedBundle) ([]sandboxes.File, error) {
	var out []sandboxes.File
	for _, f := range c.Files {
		file := sandboxes.File{Path: f.Path, Mode: fs.FileMode(cmp.Or(f.Mode, 0o444)), Data: bytes.NewReader(f.Content)}
		if f.From != "" {
			content := p.Bundle.File(f.From)
			if content == nil {
				return nil, ends.Fail(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, "sandbox: the task's bundle has no file %s", f.From))
			}
			file.Data, file.Mode = content, fs.FileMode(cmp.Or(f.Mode, 0o644))
		}
		if err := from.take(file.Data.Size()); err != nil {
			return nil, ends.Fail(schema.Faultf("create", schema.CodeBadBundle, schema.WhoTask, "%v", err))
		}
		out = append(out, file)
	}
	return out, nil
}

// runsServices reports whether a sandbox has side-cars, shared folders, a command of
// its own or a health check.
func runsServices(sb sandboxes.Sandbox, choice *schema.SandboxChoice) bool {
	return len(choice.Services) > 0 || len(choice.Folders) > 0 || !idle(sb.Argv()) || choice.Container.Health != nil
}

// startServices starts the services of a new sandbox. A step is that of a separate
// verifier.
func (n *Box) startServices(ctx context.Context, choice *schema.SandboxChoice, s *plan.Step) error {
	if !runsServices(n, choice) {
		return nil
	}
	name, keepPhase, prefix := "services", "artifacts/services", ""
	if s != nil {
		name, keepPhase, prefix = s.Phase("verifier-services"), s.Phase("artifacts/verifier-services"), s.Artifact(verifierPart+"/")
	}
	return n.stages.Run(ctx, name, 0, func(ctx context.Context, p *record.Phase) error {
		return n.startGroup(ctx, p, choice, keepPhase, prefix)
	})
}

// keepFiles keeps the logs and the folders of the sandbox's services. Only the first
// call has an effect.
func (n *Box) keepFiles(ctx context.Context) error {
	if n.services == nil {
		return nil
	}
	return n.services.keepFiles(ctx)
}

func (g *serviceGroup) keepFiles(ctx context.Context) error {
	if g.kept {
		return nil
	}
	g.kept = true
	return g.stages.Run(ctx, g.phase, g.limits.VerifyMS+StoreGrace.Milliseconds(), func(ctx context.Context, _ *record.Phase) error {
		for _, m := range g.all {
			m.mu.Lock()
			why := m.failed
			m.mu.Unlock()
			if why != "" {
				g.stages.Record.Note("service %s %s", m.name, why)
			}
			if data := m.log.bytes(); len(data) > 0 {
				if err := g.stages.Record.Keep(ctx, g.prefix+"services/"+m.name+".log", data); err != nil {
					return err
				}
			}
		}
		for _, f := range g.folders {
			if f.Keep {
				if err := g.keepFolder(ctx, f.Name, g.prefix+"folders/"+f.Name+".tar"); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// keepFolder keeps a folder through a container that mounts it.
func (g *serviceGroup) keepFolder(ctx context.Context, name, as string) error {
	for _, m := range g.all {
		for _, mount := range m.container.Mounts {
			if mount.Folder != name {
				continue
			}
			if list, err := m.sb.Files().List(ctx, mount.Path); err == nil && len(list) == 0 {
				return nil
			}
			data, _, err := Pack(ctx, g.stages.Record, m.sb.Files(), path.Clean(mount.Path), nil, false)
			if errors.Is(err, sandboxes.ErrLost) && !ends.Ruined(err) || ctx.Err() != nil {
				return err
			}
			if err != nil {
				g.stages.Record.Note("the folder %s was not kept: %v", name, err)
				return nil
			}
			return g.stages.Record.Keep(ctx, as, data)
		}
	}
	return nil
}

// maxServiceLog is the maximum number of bytes kept of a service's output. The
// last ones are kept.
const maxServiceLog = 1 << 20

// lastLog keeps the end of a service's output.
type lastLog struct {
	mu      sync.Mutex
	buf     []byte
	dropped int64
}

func (l *lastLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if over := len(l.buf) - maxServiceLog; over > maxServiceLog/4 { // cut seldom, not for each line
		l.buf = append(l.buf[:0], l.buf[over:]...)
		l.dropped += int64(over)
	}
	return len(p), nil
}

func (l *lastLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 {
		return append([]byte("[…]\n"), l.buf...)
	}
	return bytes.Clone(l.buf)
}

func (l *lastLog) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buf) == 0
}

// end returns the end of the output, at most limit bytes.
func (l *lastLog) end(limit int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf[max(len(l.buf)-limit, 0):]))
}
