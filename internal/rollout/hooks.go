package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// hooks returns the step's commands that run before artifacts are kept: those
// for the agent's sandbox, and those for other services.
func (r *Rollout) hooks(s *step) (main, others []schema.Hook) {
	if s.Verify == nil {
		return nil, nil
	}
	for _, h := range s.Verify.Collect {
		if isMain(h.Service) {
			main = append(main, h)
		} else {
			others = append(others, h)
		}
	}
	return main, others
}

// runHooks runs hooks in order. A failed hook adds a note.
func (r *Rollout) runHooks(ctx context.Context, s *step, hooks []schema.Hook) error {
	for _, h := range hooks {
		service := cmp.Or(h.Service, schema.MainService)
		err := r.phase(ctx, s.phase("collect/"+service), 0, func(ctx context.Context, p *record.Phase) error {
			exit, err := r.hook(ctx, p, h)
			if err == nil && !exit.OK() {
				r.Record.Note("the collect hook %q in %s failed: %s: %s", schema.Clip(h.Run, 200), service, exit, schema.Clip(p.Tail(), 500))
			}
			return err
		})
		var stop *ends.Failed
		if errors.As(err, &stop) && ctx.Err() == nil {
			r.Record.Note("the collect hook %q in %s failed: %s", schema.Clip(h.Run, 200), service, stop.Fault.Message)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Rollout) hook(ctx context.Context, p *record.Phase, h schema.Hook) (schema.Exit, error) {
	sb, err := r.service(h.Service)
	if err != nil {
		return schema.Exit{}, ends.Fail(schema.Faultf("collect", schema.CodeMissing, schema.WhoTask, "%v", err))
	}
	args := shell(h.Run)
	if isMain(h.Service) {
		args = bash(h.Run)
	}
	c := sandboxes.Cmd{Args: args, User: h.User, Timeout: ms(cmp.Or(h.TimeoutMS, schema.HookTimeoutMS))}
	exit, err := r.command(ctx, sb, p, c)
	if err != nil {
		return exit, fmt.Errorf("collect hook: %w", err)
	}
	return exit, nil
}
