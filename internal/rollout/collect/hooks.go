package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// hooks returns the step's commands that run before artifacts are kept: those
// for the agent's sandbox, and those for other services.
func hooks(s *plan.Step) (main, others []schema.Hook) {
	if s.Verify == nil {
		return nil, nil
	}
	for _, h := range s.Verify.Collect {
		if place.IsMain(h.Service) {
			main = append(main, h)
		} else {
			others = append(others, h)
		}
	}
	return main, others
}

// runHooks runs hooks in order. A failed hook adds a note.
func runHooks(ctx context.Context, p *place.Place, s *plan.Step, hooks []schema.Hook) error {
	for _, h := range hooks {
		service := cmp.Or(h.Service, schema.MainService)
		err := p.Stages.Run(ctx, s.Phase("collect/"+service), 0, func(ctx context.Context, ph *record.Phase) error {
			exit, err := runHook(ctx, p, ph, h)
			if err == nil && !exit.OK() {
				p.Stages.Record.Note("the collect hook %q in %s failed: %s: %s", schema.Clip(h.Run, 200), service, exit, schema.Clip(ph.Tail(), 500))
			}
			return err
		})
		var stop *ends.Failed
		if errors.As(err, &stop) && ctx.Err() == nil {
			p.Stages.Record.Note("the collect hook %q in %s failed: %s", schema.Clip(h.Run, 200), service, stop.Fault.Message)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runHook runs a hook to its end.
func runHook(ctx context.Context, p *place.Place, ph *record.Phase, h schema.Hook) (schema.Exit, error) {
	sb, err := p.Service(h.Service)
	if err != nil {
		return schema.Exit{}, ends.Fail(schema.Faultf("collect", schema.CodeMissing, schema.WhoTask, "%v", err))
	}
	args := place.Shell(h.Run)
	if place.IsMain(h.Service) {
		args = place.Bash(h.Run)
	}
	cmd := sandboxes.Cmd{Args: args, User: h.User, Timeout: stage.MS(cmp.Or(h.TimeoutMS, schema.HookTimeoutMS))}
	exit, err := p.Command(ctx, sb, ph, cmd)
	if err != nil {
		return exit, fmt.Errorf("collect hook: %w", err)
	}
	return exit, nil
}
