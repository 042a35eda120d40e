package verify

import (
	"context"
	"strings"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// verifierFolders returns the folders that no process of the agent may use during the
// verification: the use ends it.
func verifierFolders() []string { return []string{"/tests", tasks.VerifierDir, "/solution"} }

// Left are the processes that the agent of a step has left running.
type Left struct {
	place *place.Place
	step  *plan.Step
	keep  bool // they may run on
	some  bool // some run on
}

// NewLeft returns the processes of an agent with this exit. A verifier in the same
// sandbox may need them, such as a server that the task asks for. A limit of time or
// disk ends all of them.
func NewLeft(p *place.Place, s *plan.Step, exit *schema.Exit) *Left {
	v := s.Verify
	return &Left{place: p, step: s, keep: v != nil && !s.Apart() && v.Processes != schema.ProcessesEnd && exit != nil && !exit.TimedOut && !exit.Disk}
}

// End ends the processes, or only the ones that use the verifier's folders if the verifier may
// need the others and its network reaches no more than theirs.
func (l *Left) End(ctx context.Context) error {
	if !l.keep {
		return l.place.Main.KillAll(ctx)
	}
	network, allow := l.place.Request.VerifyNetwork(l.step.Verify)
	if err := l.place.Main.Confine(ctx, l.step.Phase("verify"), network, allow); err != nil {
		return err
	}
	left, err := l.release(ctx, "before the verifier started")
	if l.some = len(left) > 0; l.some {
		l.place.Stages.Record.Note("%s: processes that the agent left run on while the verifier runs: %s (verify.processes \"end\" ends them)", l.step.Phase("verify"), commands(left))
	}
	return err
}

// guard ends the processes that End spared and that have used the verifier's folders since.
func (l *Left) guard(ctx context.Context, when string) error {
	if !l.some {
		return nil
	}
	_, err := l.release(ctx, when)
	return err
}

func (l *Left) release(ctx context.Context, when string) (left []string, err error) {
	released, err := l.place.Main.Release(ctx, verifierFolders())
	if len(released.Ended) > 0 {
		l.place.Stages.Record.Note("%s: processes that the agent left used the verifier's files and were ended %s: %s", l.step.Phase("verify"), when, commands(released.Ended))
	}
	return released.Left, err
}

func commands(all []string) string { return schema.Clip(strings.Join(all, "; "), 500) }
