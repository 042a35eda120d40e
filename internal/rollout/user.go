package rollout

import (
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// namedUser is a user that a field of the request names; empty: the default
// user of the sandbox.
type namedUser struct{ field, user string }

// field returns the name of a field of the step in the request.
func (s *step) field(name string) string {
	switch {
	case s.Name != "":
		return fmt.Sprintf("steps[%d].%s", s.index, name)
	case name == "user":
		return "agent.user"
	default:
		return name
	}
}

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
