package rollout

import (
	"context"
	"strings"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// verifierFolders are the folders whose use ends a process that the agent left.
func verifierFolders() []string { return []string{"/tests", tasks.VerifierDir, "/solution"} }

// endProcesses ends the processes that the agent left running. A verifier in the
// same sandbox may need them, such as a server that the task asks for: then only
// those that use the verifier's folders end.
func (r *Rollout) endProcesses(ctx context.Context, s *step) error {
	if !s.keepsProcesses() {
		return r.sandbox.KillAll(ctx)
	}
	left, err := r.release(ctx, s, "before the verifier started")
	if r.left = len(left) > 0; r.left {
		r.Record.Note("%s: processes that the agent left run on while the verifier runs: %s (verify.processes \"end\" ends them)", s.phase("verify"), commands(left))
	}
	return err
}

// keepsProcesses reports whether processes that the agent left may run on. A limit
// of time or disk ends all of them.
func (s *step) keepsProcesses() bool {
	v, exit := s.Verify, s.result.Exit
	return v != nil && !s.separate() && v.Processes != schema.ProcessesEnd && exit != nil && !exit.TimedOut && !exit.Disk
}

// guardVerifier ends those of the processes that endProcesses left which use the
// verifier's folders by now.
func (r *Rollout) guardVerifier(ctx context.Context, s *step, when string) error {
	if !r.left || s.separate() {
		return nil
	}
	_, err := r.release(ctx, s, when)
	return err
}

func (r *Rollout) release(ctx context.Context, s *step, when string) (left []string, err error) {
	released, err := r.sandbox.Release(ctx, verifierFolders())
	if len(released.Ended) > 0 {
		r.Record.Note("%s: processes that the agent left used the verifier's files and were ended %s: %s", s.phase("verify"), when, commands(released.Ended))
	}
	return released.Left, err
}

func commands(all []string) string { return schema.Clip(strings.Join(all, "; "), 500) }
