package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Entry is a job in a list of jobs.
type Entry struct {
	Dir      string     `json:"dir"`
	Name     string     `json:"name"`
	Agents   []string   `json:"agents"`
	Models   []string   `json:"models"` // empty: each agent's only one
	Created  time.Time  `json:"created_at"`
	Finished *time.Time `json:"finished_at"` // null: the job has not ended
	Summary
}

// List reads the jobs in a folder, the newest first. It skips folders that are
// not jobs of turngate or Harbor. If some jobs cannot be read, it returns an error together
// with the other jobs.
func List(dir string) ([]Entry, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	var out []Entry
	var bad []error
	for _, f := range list {
		at := filepath.Join(dir, f.Name())
		if !f.IsDir() {
			continue
		}
		e, err := entryOf(at)
		if errors.Is(err, ErrNoJob) {
			continue
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Dir, b.Dir)) })
	return out, errors.Join(bad...)
}

// entryOf reads the entry of one job.
func entryOf(dir string) (Entry, error) {
	p, results, err := Read(dir)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Dir: dir, Name: p.Name, Agents: p.Agents(), Models: p.Models(), Created: p.Created, Summary: Sum(len(p.Trials), results)}
	switch {
	case p.Harbor:
		if at := harborEnd(dir); !at.IsZero() {
			e.Finished = &at
		}
	case e.Ended == e.Trials:
		e.Finished = finished(dir, results)
	}
	return e, nil
}
