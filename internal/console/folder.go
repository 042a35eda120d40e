package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// lookEvery is the interval in which folders are looked at.
const lookEvery = time.Second

// Folder is the Source of a folder: one job, or the jobs in it, of turngate and of Harbor.
type Folder struct{ Dir string }

// Name implements Source.
func (f *Folder) Name() string { return f.Dir }

// Flags implements Source.
func (f *Folder) Flags(string) string {
	dir := f.Dir
	if abs, err := filepath.Abs(dir); err == nil && jobs.Is(dir) == nil { // the folder "." has a name, too
		dir = filepath.Dir(abs)
	}
	return "--runs " + plain.Word(dir)
}

// Follow implements Source. It reads a job again when its files tell of a change.
func (f *Folder) Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error)) {
	seen := map[string]stamp{}
	shown := map[schema.ID]bool{}   // true: with its result
	owner := map[schema.ID]string{} // the job whose rollout is shown
	copied := map[string]copies{}   // by the job that has rollouts of another one
	failed := false
	for ctx.Err() == nil {
		dirs, err := f.jobs()
		for _, dir := range dirs {
			at := stampOf(dir)
			if at == seen[dir] {
				continue
			}
			list, jerr := recorded.InJob(dir)
			if err = errors.Join(err, jerr); jerr != nil {
				continue
			}
			delete(copied, dir)
			for _, r := range list {
				if of, ok := owner[r.ID]; ok && of != dir && slices.Contains(dirs, of) {
					copied[dir] = copies{of, copied[dir].number + 1}
					continue
				}
				owner[r.ID] = dir
				if ended, ok := shown[r.ID]; !ok || !ended && r.Result != nil {
					shown[r.ID] = r.Result != nil && r.Unread == nil // another program may be writing it
					show(r)
				}
			}
			seen[dir] = at
		}
		for _, dir := range dirs { // in each round: trouble replaces what it was told before
			if c := copied[dir]; slices.Contains(dirs, c.of) {
				err = errors.Join(err, fmt.Errorf("the job %s has %d rollouts of the job %s: they are shown once, as those of %[3]s; to see the others, open %[1]s alone", plain.Word(dir), c.number, plain.Word(c.of)))
			}
		}
		if err != nil || failed {
			failed = err != nil
			trouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
}

// copies are rollouts of another job that a job has, as a copy of its folder does.
type copies struct {
	of     string
	number int
}

// jobs lists the folders of the jobs.
func (f *Folder) jobs() ([]string, error) {
	if jobs.Is(f.Dir) == nil {
		return []string{f.Dir}, nil
	}
	list, err := os.ReadDir(f.Dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range list {
		if dir := filepath.Join(f.Dir, e.Name()); e.IsDir() && jobs.Is(dir) == nil {
			out = append(out, dir)
		}
	}
	return out, nil
}

// jobName is the name of a job's folder, by which pages name the job.
func jobName(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil { // the folder "." has a name, too
		dir = abs
	}
	return cell(filepath.Base(dir))
}

// stamp changes with a job's plan and results: a job writes result.json after results. A
// job of Harbor has no plan, and its folder changes when a trial begins.
type stamp struct{ plan, folder, result fileStamp }

type fileStamp struct {
	at   time.Time
	size int64
}

func stampOf(dir string) stamp {
	of := func(name string) (s fileStamp) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			s = fileStamp{info.ModTime(), info.Size()}
		}
		return s
	}
	at := stamp{plan: of("turngate.json"), result: of("result.json")}
	if at.plan == (fileStamp{}) {
		at.folder = of(".")
	}
	return at
}

// Files implements Source.
func (f *Folder) Files() error { return nil }

// Runs implements Source.
func (f *Folder) Runs() *Folder { return f }

// Rollout implements Source.
func (f *Folder) Rollout(_ context.Context, id schema.ID) (*recorded.Rollout, error) {
	dirs, bad := f.jobs()
	for _, dir := range dirs {
		list, err := recorded.InJob(dir)
		bad = errors.Join(bad, err)
		for _, r := range list {
			if r.ID == id {
				return r, nil
			}
		}
	}
	return nil, errors.Join(&recorded.NotFoundError{Name: string(id), Where: f.Dir}, bad)
}
