package place

import (
	"context"
	"errors"
	"path"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

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
			if m.log.empty() {
				continue
			}
			log := g.stages.Record.Files.New()
			if err := m.log.copyTo(log); err != nil {
				return err
			}
			if err := g.stages.Record.KeepFile(ctx, g.prefix+"services/"+m.name+".log", log); err != nil {
				return err
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
			packed := g.stages.Record.Files.New()
			defer packed.Close()
			_, err := Pack(ctx, g.stages.Record, m.sb.Files(), path.Clean(mount.Path), packed, nil, false)
			if errors.Is(err, sandboxes.ErrLost) && !ends.Ruined(err) || ctx.Err() != nil {
				return err
			}
			if err != nil {
				g.stages.Record.Note("the folder %s was not kept: %v", name, err)
				return nil
			}
			return g.stages.Record.KeepFile(ctx, as, packed)
		}
	}
	return nil
}
