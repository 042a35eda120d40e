package agentrun

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/sandboxes"
)

// maxSkills is the maximum size of an agent's skills in bytes.
const maxSkills = 64 << 20

// giveSkills copies the task's skills to the folder that the agent reads.
func (r *Runs) giveSkills(ctx context.Context, user string) error {
	from := r.q.Agent.SkillsDir
	if from == "" || r.agent.Dialect == "" {
		return nil
	}
	if r.agent.Skills == "" {
		r.rec.Note("%s reads no skills: those in %s are not given to it", r.agent.Name, from)
		return nil
	}
	var skills bytes.Buffer
	err := r.Place.Main.Files().TarOut(ctx, from, &skills, sandboxes.TarOptions{Limit: maxSkills})
	var large *sandboxes.TooLargeError
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, &large) {
		r.rec.Note("the skills were not given to %s: %v", r.agent.Name, err)
		return nil
	}
	if err != nil {
		return err
	}
	return r.Place.Main.Files().TarIn(ctx, path.Join(place.AgentDir, r.agent.Skills), &skills, user)
}
