package recorded

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/turngate/turngate/trajectory"
)

// maxTrajectory is the size in bytes of the largest trajectory that is read.
const maxTrajectory = 128 << 20

// ofHarbor reports whether Harbor ran the rollout.
func (r *Rollout) ofHarbor() bool { return r.Plan != nil && r.Plan.Harbor }

// imported reads the trajectories of a rollout of Harbor: that of the agent, or one for
// each step, with the files that they name. The agent has written them: no file outside of
// the trial is read.
func (r *Rollout) imported() (*trajectory.Imported, error) {
	folder, err := r.folder()
	if err != nil {
		return nil, fmt.Errorf("read the trajectory of %s: %w", r.Name(), err)
	}
	defer folder.Close()
	var names []string
	folders := []string{"agent"}
	if r.Result != nil {
		for _, s := range r.Result.Steps {
			folders = append(folders, path.Join("steps", s.Name, "agent"))
		}
	}
	for _, dir := range folders {
		name := path.Join(dir, "trajectory.json")
		if err := folder.Is(name); err == nil {
			names = append(names, name)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the trajectory of %s: %w", r.Name(), err)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: %w (no agent/trajectory.json)", r.Name(), ErrNoTranscript)
	}
	out, err := trajectory.Import(r.ID, names, func(name string) ([]byte, error) { return folder.Read(name, maxTrajectory) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Name(), err)
	}
	return out, nil
}
