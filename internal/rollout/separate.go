package rollout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// restorable is an artifact for a separate verifier.
type restorable struct {
	source string // path in the form of the rule
	folder bool   // data is a tar stream
	mode   fs.FileMode
	data   []byte
}

// verifierPart is the Part of a rollout's second sandbox.
const verifierPart = "verifier"

// separateSandbox makes the second sandbox and restores the artifacts into it.
// In the last step it closes the agent's sandbox first.
func (r *Rollout) separateSandbox(ctx context.Context, s *step) (sandboxes.Sandbox, error) {
	if s.last {
		if err := r.keepServiceFiles(ctx); err != nil {
			return nil, err
		}
		r.closeSandbox(ctx, r.sandbox)
		r.sandbox = nil
	}
	q, choice := &r.Request, *s.Verify.Separate
	var sb sandboxes.Sandbox
	err := r.phase(ctx, s.phase("verify-create"), q.Limits.InstallMS+q.Limits.ReadyMS, func(ctx context.Context, p *record.Phase) (err error) {
		network, _ := q.VerifyNetwork(s.Verify)
		sb, err = r.newSandbox(ctx, p, choice, verifierPart, []string{cmp.Or(choice.Network, schema.NetworkNone), network},
			[]namedUser{{s.field("verify.separate.user"), ""}, {s.field("verify.user"), s.Verify.User}})
		return err
	})
	if err != nil {
		return nil, r.buildFault(ctx, err, &choice)
	}
	r.second = sb
	if err := r.startServices(ctx, sb, &choice, s); err != nil {
		return nil, err
	}
	err = r.phase(ctx, s.phase("verify-upload"), q.Limits.SetupMS, func(ctx context.Context, _ *record.Phase) error {
		for _, a := range s.kept {
			if err := a.restore(ctx, sb, s.Verify.User); err != nil {
				return err
			}
		}
		return nil
	})
	s.kept = nil
	return sb, err
}

// restore puts an artifact at the path that it was read from.
func (a restorable) restore(ctx context.Context, sb sandboxes.Sandbox, owner string) error {
	at := a.source
	if !path.IsAbs(at) {
		at = path.Join(sb.Workdir(), at)
	}
	at = path.Clean(at)
	files := sb.Files()
	if at != "/" {
		if err := clear(ctx, files, at); err != nil {
			return err
		}
	}
	if !a.folder {
		if err := files.Write(ctx, at, a.data, a.mode.Perm(), owner); err != nil {
			return fmt.Errorf("restore %s: %w", a.source, err)
		}
		return nil
	}
	if err := files.TarIn(ctx, at, bytes.NewReader(a.data), owner); err != nil {
		return fmt.Errorf("restore %s: %w", a.source, err)
	}
	return nil
}

// measure records the separation of the step's verifier from its agent. It
// queries the sandbox before the agent starts, because the agent could change
// the answer.
func (r *Rollout) measure(ctx context.Context, s *step) error {
	switch {
	case s.Verify == nil:
		return nil
	case s.separate():
		s.result.Separation = schema.SeparationSandbox
		return nil
	}
	s.result.Separation = schema.SeparationSameUser
	verifier := r.userOf(s.Verify.User)
	if verifier == s.User {
		return nil
	}
	agent, err := r.uid(ctx, s.User)
	if err != nil {
		return err
	}
	other, err := r.uid(ctx, verifier)
	if err != nil {
		return err
	}
	if agent != "" && other != "" && agent != "0" && agent != other { // root can change to any user
		s.result.Separation = schema.SeparationOtherUser
	}
	return nil
}

// uid returns a user's number in the sandbox, or "" if the image lacks id or
// the user.
func (r *Rollout) uid(ctx context.Context, user string) (string, error) {
	var out bytes.Buffer
	proc, err := r.sandbox.Start(ctx, sandboxes.Cmd{Args: []string{"id", "-u"}, User: user, Stdout: &out, Timeout: 5 * time.Second, OutputLimit: 64})
	var none *sandboxes.NoCommandError
	if errors.As(err, &none) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	exit, err := await(ctx, proc)
	if err != nil || !exit.OK() {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}

// makeLogs makes the log folders that a task may expect. They are empty and
// writable by every user, because the agent and the verifier may be different
// users. Files of the image in these folders are removed.
//
// Only root may rename them, so that a process of the agent cannot take the place of
// the verifier's folder.
func (r *Rollout) makeLogs(ctx context.Context, owner string) error {
	if err := r.sandbox.Files().Mkdir(ctx, path.Dir(tasks.VerifierDir), 0o755, "root"); err != nil {
		return err
	}
	for _, dir := range []string{agentLogs, published, tasks.VerifierDir} {
		if err := r.sandbox.Files().Empty(ctx, dir, 0o777, owner); err != nil {
			return err
		}
	}
	return nil
}

// testFolders returns the test folders to copy into the verifier's sandbox, in
// order.
func (s *step) testFolders() []string {
	if s.separate() && s.Verify.Bundled {
		return nil
	}
	return s.tests
}

// stale returns the folders to empty before a verifier runs.
func (s *step) stale() []string {
	if s.separate() && s.Verify.Bundled {
		return nil
	}
	return []string{"/tests"}
}
