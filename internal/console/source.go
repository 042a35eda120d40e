package console

import (
	"context"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Source has the rollouts that a console shows.
type Source interface {
	// Name tells people where the rollouts are from.
	Name() string
	// Flags are those with which turngate's commands find the rollouts of a trainer, as shell
	// text.
	Flags(trainer string) string
	// Follow calls show for every rollout, and again after each change, until the context
	// ends. trouble gets an error while rollouts cannot be read, and nil after it. Both
	// are safe for concurrent use.
	Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error))
	// Files returns the reason for which files of rollouts cannot be read; nil: they can.
	Files() error
	// Runs has the jobs; nil: a running system alone, which keeps none.
	Runs() *Folder
	// Rollout finds a rollout. The error wraps recorded.ErrNotFound if there is none.
	Rollout(ctx context.Context, id schema.ID) (*recorded.Rollout, error)
}
