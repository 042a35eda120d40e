package jobs

import (
	"math"
	"path/filepath"
	"strings"

	"github.com/turngate/turngate/schema"
)

// TaskTitles returns a function that names the task of a trial of one of the plans. Tasks of
// one name in different folders of a plan have the ends of their folders' paths, too.
func TaskTitles(plans ...*Plan) func(*Trial) string {
	depths := map[string]int{} // number of last elements of a path that tell the tasks of a name apart
	for _, p := range plans {
		for task, dirs := range p.Namesakes() {
			for n := depths[task]; ; n++ {
				ends := map[string]bool{}
				for _, dir := range dirs {
					ends[pathEnd(dir, n)] = true
				}
				if depths[task] = n; len(ends) == len(dirs) {
					break
				}
			}
		}
	}
	return func(t *Trial) string {
		if n := depths[t.Task]; n > 0 {
			return t.Task + " (" + pathEnd(t.Dir, n) + ")"
		}
		return t.Task
	}
}

// Titles returns the titles of the trials' tasks by their rollouts.
func (p *Plan) Titles() map[schema.ID]string {
	title, out := TaskTitles(p), make(map[schema.ID]string, len(p.Trials))
	for i := range p.Trials {
		out[p.Trials[i].Rollout] = title(&p.Trials[i])
	}
	return out
}

// Namesakes returns the folders of tasks with the same name, by that name.
func (p *Plan) Namesakes() map[string][]string {
	type folder struct{ task, dir string }
	all, known := map[string][]string{}, map[folder]bool{}
	for i := range p.Trials {
		t := &p.Trials[i]
		if f := (folder{t.Task, pathEnd(t.Dir, math.MaxInt)}); !known[f] {
			known[f] = true
			all[f.task] = append(all[f.task], f.dir)
		}
	}
	for task, dirs := range all {
		if len(dirs) < 2 {
			delete(all, task)
		}
	}
	return all
}

// pathEnd returns the last n elements of a path.
func pathEnd(path string, n int) string {
	all := strings.Split(filepath.ToSlash(filepath.Clean(path)), "/")
	return strings.Join(all[max(len(all)-n, 0):], "/")
}
