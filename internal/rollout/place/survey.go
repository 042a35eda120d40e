package place

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// namedUser is a user that a field of the request names; empty: the default
// user of the sandbox.
type namedUser struct{ field, user string }

// lacksUser looks a user up in a sandbox. It returns a *sandboxes.NoUserError if
// commands there cannot run as the user.
func lacksUser(ctx context.Context, files sandboxes.Files, user string) error {
	return files.Mkdir(ctx, "/", 0o755, user) // the folder exists, so that only the user is looked up
}

// checkUser returns a fault of the task if commands in a sandbox cannot run as
// a user. After the agent has run, the error blames the agent, which may have
// removed the user, unless the user was missing before.
func checkUser(ctx context.Context, files sandboxes.Files, stage string, u namedUser, missing bool) error {
	err := lacksUser(ctx, files, u.user)
	var none *sandboxes.NoUserError
	var spoiled *ends.Spoiled
	if errors.As(err, &none) && (missing || !errors.As(err, &spoiled)) {
		return ends.Fail(schema.Faultf(stage, schema.CodeMissing, schema.WhoTask, "%v", &schema.InvalidError{
			Field: u.field, Value: none.User, Want: none.Reason + "; want a user of its /etc/passwd or a uid that it has, such as root",
		}))
	}
	return err
}

// survey has facts about the agent's sandbox from the time before the first agent ran.
type survey struct {
	separations []string        // of each step's verifier from its agent
	absent      map[string]bool // programs of verifiers that were missing
	absentUsers map[string]bool // users of steps that were missing
}

// Survey makes the verifiers' folder, and looks for their programs, before the
// first agent runs. A program that Survey found and that is missing later is not
// the task's fault.
func (p *Place) Survey(ctx context.Context) error {
	if p.survey != nil {
		return nil
	}
	p.survey = &survey{absent: map[string]bool{}, absentUsers: map[string]bool{}}
	files := p.Main.Files()
	for _, s := range p.Steps {
		var none *sandboxes.NoUserError
		if errors.As(lacksUser(ctx, files, s.User), &none) { // an earlier step may make the user
			p.survey.absentUsers[s.User] = true
		}
		separation, err := measure(ctx, p.Main, p.Request, s)
		if err != nil {
			return err
		}
		p.survey.separations = append(p.survey.separations, separation)
		if s.Verify == nil || s.Apart() {
			continue
		}
		if err := checkUser(ctx, files, s.Phase("verify"), namedUser{s.Field("verify.user"), s.Verify.User}, false); err != nil {
			return err
		}
		err = files.Mkdir(ctx, tasks.VerifierDir, 0o777, s.Verify.User)
		if errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil {
			return err
		}
		if err != nil {
			return ends.Fail(schema.Faultf(s.Phase("verify"), schema.CodeMissing, schema.WhoTask, "the verifier's folder: %v", err))
		}
		line, err := firstLine(p.Bundle.File(s.Script))
		if err != nil {
			return err
		}
		program := interpreter(line)[0]
		if s.Verify.Run != "" {
			program = Shell("")[0]
		}
		if _, err := files.Stat(ctx, program); errors.Is(err, fs.ErrNotExist) {
			p.survey.absent[program] = true
		}
	}
	return nil
}

// Separation tells how far the step's verifier is from its agent; empty: there is none.
func (p *Place) Separation(s *plan.Step) string { return p.survey.separations[s.Index] }

// CheckUser returns a fault if the step's agent cannot run as its user.
func (p *Place) CheckUser(ctx context.Context, s *plan.Step) error {
	return checkUser(ctx, p.Main.Files(), s.Phase("agent"), namedUser{s.Field("user"), s.User}, p.survey.absentUsers[s.User])
}

// measure measures the separation of the step's verifier from its agent. It
// queries the sandbox before the agent starts, because the agent could change
// the answer.
func measure(ctx context.Context, sb sandboxes.Sandbox, q *schema.Request, s *plan.Step) (string, error) {
	switch {
	case s.Verify == nil:
		return "", nil
	case s.Apart():
		return schema.SeparationSandbox, nil
	}
	verifier := plan.UserOf(q, s.Verify.User)
	if verifier == s.User {
		return schema.SeparationSameUser, nil
	}
	agent, err := uid(ctx, sb, s.User)
	if err != nil {
		return "", err
	}
	other, err := uid(ctx, sb, verifier)
	if err != nil {
		return "", err
	}
	if agent != "" && other != "" && agent != "0" && agent != other { // root can change to any user
		return schema.SeparationOtherUser, nil
	}
	return schema.SeparationSameUser, nil
}

// uid returns a user's number in the sandbox, or "" if the image lacks id or
// the user.
func uid(ctx context.Context, sb sandboxes.Sandbox, user string) (string, error) {
	var out bytes.Buffer
	proc, err := sb.Start(ctx, sandboxes.Cmd{Args: []string{"id", "-u"}, User: user, Stdout: &out, Timeout: 5 * time.Second, OutputLimit: 64})
	var none *sandboxes.NoCommandError
	if errors.As(err, &none) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	exit, err := stage.Await(ctx, proc)
	if err != nil || !exit.OK() {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}
