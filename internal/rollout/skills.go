package rollout

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"

	"github.com/turngate/turngate/sandboxes"
)

// maxSkills is the maximum size of an agent's skills in bytes.
const maxSkills = 64 << 20

// giveSkills copies the task's skills to the folder that the agent reads.
func (r *Rollout) giveSkills(ctx context.Context, user string) error {
	from := r.Request.Agent.SkillsDir
	if from == "" || r.agent.Dialect == "" {
		return nil
	}
	if r.agent.Skills == "" {
		r.Record.Note("%s reads no skills: those in %s are not given to it", r.agent.Name, from)
		return nil
	}
	var skills bytes.Buffer
	err := r.sandbox.Files().TarOut(ctx, from, &skills, sandboxes.TarOptions{Limit: maxSkills})
	var large *sandboxes.TooLargeError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &large) {
		r.Record.Note("the skills were not given to %s: %v", r.agent.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	return r.sandbox.Files().TarIn(ctx, path.Join(agentDir, r.agent.Skills), &skills, user)
}
