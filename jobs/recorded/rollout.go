// Package recorded finds recorded rollouts in the folders of jobs and on running
// systems, and reads their files.
package recorded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Bounds of files that are read whole, in bytes, and of their number.
const (
	maxResult     = 256 << 20
	maxTranscript = 1 << 30 // as stored
	maxListed     = 100_000 // files of a rollout
)

// Names of artifacts, and of the same files in the folder of a trial.
const (
	transcriptName = "transcript.jsonl.zst"
	stdoutName     = "agent.stdout.log"
	stderrName     = "agent.stderr.log"
	resultName     = "turngate.json"
)

// ErrNoTranscript means that a rollout has no transcript: it made no model call,
// or has not ended.
var ErrNoTranscript = errors.New("the rollout has no transcript: it made no model call, or has not ended")

// Rollout is a recorded rollout.
type Rollout struct {
	ID     schema.ID
	Result *schema.Result  // nil: it has not ended, or only its transcript is known
	State  *schema.State   // on a running system
	Asked  *schema.Request // on a running system, while it has no result
	Seq    uint64          // of its message in its trainer's queue, if Follow found it there
	Job    string          // the job's folder; empty: none
	Trial  *jobs.Trial
	Plan   *jobs.Plan
	Title  string // of the trial's task, as of jobs.TaskTitles
	// Unread is the error of a record that cannot be read. The record's fields are nil, or in the
	// folder of a job Result has the fault of jobs.Unread. It is set in folders, in lists and by
	// Follow.
	Unread error

	at   string // the trial's folder in that of the job; empty: none
	file string // a transcript alone
	from *broker.Broker
}

// Name returns the name of the trial, or the id.
func (r *Rollout) Name() string {
	switch {
	case r.Trial != nil:
		return r.Trial.Name
	case r.ID != "":
		return string(r.ID)
	default:
		return r.file
	}
}

// InJob returns the rollouts of a job in the order of its plan.
func InJob(dir string) ([]*Rollout, error) {
	p, results, err := jobs.Read(dir)
	if err != nil {
		return nil, err
	}
	ended := map[schema.ID]*schema.Result{}
	for i := range results {
		ended[results[i].ID] = &results[i]
	}
	var out []*Rollout
	title := jobs.TaskTitles(&p)
	for i := range p.Trials {
		t := &p.Trials[i]
		r := &Rollout{ID: t.Rollout, Result: ended[t.Rollout], Job: dir, Trial: t, Plan: &p, Title: title(t), at: t.Name}
		if r.Result != nil {
			r.Unread = jobs.Unread(r.Result)
		}
		out = append(out, r)
	}
	return out, nil
}

// retriedIn returns the ended rollouts of a job after which their trials ran again. The
// name of each trial is that of its folder.
func retriedIn(dir string) ([]*Rollout, error) {
	p, _, err := jobs.Read(dir)
	if err != nil {
		return nil, err
	}
	var out []*Rollout
	title := jobs.TaskTitles(&p)
	for _, t := range p.Trials {
		for i, before := range t.Retried {
			at := t
			at.Rollout, at.Name = before.Rollout, path.Base(t.RetriedDir(i))
			r := &Rollout{ID: before.Rollout, Job: dir, Trial: &at, Plan: &p, Title: title(&at), at: t.RetriedDir(i)}
			folder, err := r.folder()
			if err == nil {
				r.Result, err = resultIn(folder)
				folder.Close()
			}
			if !errors.Is(err, fs.ErrNotExist) {
				r.Unread = err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// InJobs returns the rollouts of all jobs in a folder, beginning with the newest
// job. If some jobs cannot be read, it returns an error together with the
// rollouts of the others.
func InJobs(runs string) ([]*Rollout, error) {
	list, bad := jobs.List(runs)
	var out []*Rollout
	for _, e := range list {
		more, err := InJob(e.Dir)
		bad = errors.Join(bad, err)
		out = append(out, more...)
	}
	return out, bad
}

// NotFoundError reports a name without any rollout. It wraps ErrNotFound.
type NotFoundError struct{ Name, Where string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no rollout %q was found in %s: want a rollout's id, the name of a trial, or the path of a trial, a job or a transcript", e.Name, e.Where)
}

// Is reports whether target is ErrNotFound.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// Find returns the rollouts of a name. The name is the path of a job, of a trial or
// of a transcript, else a rollout's id or a trial's name in the jobs of a folder.
func Find(runs, name string) ([]*Rollout, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
	case !info.IsDir():
		return one(transcriptAt(name))
	default:
		if r := trialAt(name); r != nil { // the folder of a trial has a file with the name of a plan
			return []*Rollout{r}, nil
		}
		if jobs.Is(name) == nil {
			return InJob(name)
		}
	}
	all, bad := InJobs(runs)
	jobsOf := map[string]bool{}
	for _, r := range all {
		if string(r.ID) == name || r.Trial.Name == name {
			return []*Rollout{r}, nil
		}
		jobsOf[r.Job] = true
	}
	for dir := range jobsOf {
		again, err := retriedIn(dir)
		bad = errors.Join(bad, err)
		for _, r := range again {
			if string(r.ID) == name || r.Trial.Name == name {
				return []*Rollout{r}, nil
			}
		}
	}
	return nil, errors.Join(&NotFoundError{name, runs}, bad)
}

func one(r *Rollout, err error) ([]*Rollout, error) {
	if err != nil {
		return nil, err
	}
	return []*Rollout{r}, nil
}

// trialAt returns the rollout of a trial's folder; nil for any other folder.
func trialAt(dir string) *Rollout {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	find := func() ([]*Rollout, error) { return InJob(filepath.Dir(dir)) }
	if above := filepath.Dir(dir); filepath.Base(above) == jobs.RetriedName {
		find = func() ([]*Rollout, error) { return retriedIn(filepath.Dir(above)) }
	}
	all, err := find()
	if err != nil {
		return nil
	}
	for _, r := range all {
		if r.Trial.Name == filepath.Base(dir) {
			return r
		}
	}
	return nil
}

// transcriptAt returns the rollout of a transcript, with the result beside it if
// there is one.
func transcriptAt(file string) (*Rollout, error) {
	if dir := filepath.Dir(file); filepath.Base(dir) == "agent" {
		if r := trialAt(filepath.Dir(dir)); r != nil {
			return r, nil
		}
	}
	r := &Rollout{file: file}
	beside, err := stranger.Open(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	defer beside.Close()
	result, err := resultIn(beside)
	if err != nil {
		return nil, err
	}
	if result != nil {
		r.Result, r.ID = result, result.ID
	}
	return r, nil
}

// resultIn reads the result in a folder; nil if it has none that is valid.
func resultIn(dir *stranger.Folder) (*schema.Result, error) {
	data, err := dir.Read(resultName, maxResult)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var result schema.Result
	if json.Unmarshal(data, &result) != nil || schema.Validate(&result) != nil {
		return nil, nil
	}
	return &result, nil
}

// Transcript reads the compressed transcript. That of a rollout of Harbor is made of its
// trajectory. The error wraps ErrNoTranscript if there is none.
func (r *Rollout) Transcript(ctx context.Context) ([]byte, error) {
	switch {
	case r.file != "":
		return stranger.Read(r.file, maxTranscript)
	case r.ofHarbor():
		m, err := r.imported()
		if err != nil {
			return nil, err
		}
		return m.Transcript, nil
	case r.at != "":
		data, err := r.readFile(path.Join("agent", transcriptName), maxTranscript)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", r.Name(), ErrNoTranscript)
		}
		return data, err
	case r.Result == nil || r.Result.Transcript == "":
		return nil, fmt.Errorf("%s: %w", r.Name(), ErrNoTranscript)
	default:
		return r.artifact(ctx, r.Result.Transcript)
	}
}

// Read reads the transcript and links its calls.
func (r *Rollout) Read(ctx context.Context, o trajectory.Options) (*trajectory.Rollout, error) {
	_, t, err := r.read(ctx, o)
	return t, err
}

// read is Read, and returns the transcript, too.
func (r *Rollout) read(ctx context.Context, o trajectory.Options) ([]byte, *trajectory.Rollout, error) {
	data, result, notes, err := r.record(ctx)
	if err != nil {
		return nil, nil, err
	}
	t, err := trajectory.Read(bytes.NewReader(data), result, o)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r.Name(), err)
	}
	t.Findings = append(t.Findings, notes...)
	return data, t, nil
}

// record returns the transcript and the result that names its answers.
func (r *Rollout) record(ctx context.Context) ([]byte, *schema.Result, []trajectory.Finding, error) {
	if !r.ofHarbor() {
		data, err := r.Transcript(ctx)
		return data, r.Result, nil, err
	}
	m, err := r.imported()
	if err != nil {
		return nil, nil, nil, err
	}
	var notes []trajectory.Finding
	for _, n := range m.Notes {
		notes = append(notes, trajectory.Finding{Level: trajectory.LevelError, Code: "trajectory_part", Text: n})
	}
	if r.Result == nil {
		return m.Transcript, nil, notes, nil
	}
	result := *r.Result
	result.Committed = m.Committed
	return m.Transcript, &result, notes, nil
}

// Log reads the agent's stdout or stderr.
func (r *Rollout) Log(ctx context.Context, stderr bool) ([]byte, error) {
	name, local := stdoutName, "agent.log"
	if stderr {
		name, local = stderrName, stderrName
	}
	if r.at != "" {
		for _, n := range []string{local, "oracle.txt"} {
			data, err := r.readFile(path.Join("agent", n), maxResult)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("read the log of %s: %w", r.Name(), err)
			}
			if err == nil {
				return data, nil
			}
		}
		return nil, nil // the agent wrote nothing
	}
	if r.Result != nil && !slices.Contains(r.Files(), name) {
		return nil, nil
	}
	return r.artifact(ctx, name)
}

// artifact reads a file of a rollout on a running system.
func (r *Rollout) artifact(ctx context.Context, name string) ([]byte, error) {
	if r.Result == nil || r.from == nil {
		return nil, fmt.Errorf("%s: it has not ended, so it has no files yet; `turngate tap %s` shows what it does", r.Name(), r.ID)
	}
	for _, a := range r.Result.Artifacts {
		if a.Name == name {
			return r.from.Objects.Artifact(ctx, r.Result.Trainer, a.SHA256)
		}
	}
	return nil, fmt.Errorf("%s has no file %q; it has %q", r.Name(), name, r.Files())
}

// Files lists the names of the rollout's files.
func (r *Rollout) Files() []string {
	var out []string
	if r.at != "" {
		folder, err := r.folder()
		if err != nil {
			return nil
		}
		defer folder.Close()
		_ = fs.WalkDir(folder.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				out = append(out, name)
			}
			if len(out) == maxListed {
				return fs.SkipAll
			}
			return nil // an unreadable entry is left out
		})
	} else if r.Result != nil {
		for _, a := range r.Result.Artifacts {
			out = append(out, a.Name)
		}
	}
	return out
}

// Copy copies files of the rollout into a folder. A file is copied if its name
// matches one of the patterns of path.Match, or if a pattern is the name of a
// folder above it. No pattern means all files. Copy returns the copied names.
func (r *Rollout) Copy(ctx context.Context, to string, patterns []string) ([]string, error) {
	if r.Result == nil && r.at == "" {
		return nil, fmt.Errorf("%s: it has not ended, so it has no files yet", r.Name())
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return nil, fmt.Errorf("copy files: %w", err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, fmt.Errorf("copy files: %w", err)
	}
	defer root.Close()
	var from *stranger.Folder
	if r.at != "" {
		if from, err = r.folder(); err != nil {
			return nil, fmt.Errorf("copy files: %w", err)
		}
		defer from.Close()
	}
	var copied []string
	for _, name := range r.Files() {
		if !matches(patterns, name) {
			continue
		}
		if !filepath.IsLocal(name) {
			return copied, fmt.Errorf("the file %q was not copied: its name leads elsewhere", name)
		}
		if err := r.copyFile(ctx, root, from, name); err != nil {
			return copied, fmt.Errorf("copy %s: %w", name, err)
		}
		copied = append(copied, name)
	}
	if len(copied) == 0 {
		return nil, fmt.Errorf("%s has none of the files %q; it has %q", r.Name(), patterns, r.Files())
	}
	return copied, nil
}

func (r *Rollout) copyFile(ctx context.Context, root *os.Root, from *stranger.Folder, name string) error {
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	in, err := r.open(ctx, from, name)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Open opens a file of the rollout by its name, one of Files. The caller closes it.
func (r *Rollout) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if !slices.Contains(r.Files(), name) || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%s has no file %q", r.Name(), name)
	}
	if r.at == "" {
		return r.open(ctx, nil, name)
	}
	folder, err := r.folder()
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	defer folder.Close()
	return r.open(ctx, folder, name)
}

// open opens a file in the trial's folder, or reads it from the running system.
func (r *Rollout) open(ctx context.Context, from *stranger.Folder, name string) (io.ReadCloser, error) {
	if from != nil {
		return from.Open(name, math.MaxInt64)
	}
	data, err := r.artifact(ctx, name)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func matches(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		p = strings.TrimSuffix(p, "/")
		ok, _ := path.Match(p, name)
		return ok || p == name || strings.HasPrefix(name, p+"/")
	})
}

// folder opens the trial's folder.
func (r *Rollout) folder() (*stranger.Folder, error) {
	job, err := stranger.Open(r.Job)
	if err != nil {
		return nil, err
	}
	defer job.Close()
	return job.Folder(r.at)
}

// readFile reads a file of the trial's folder.
func (r *Rollout) readFile(name string, limit int64) ([]byte, error) {
	folder, err := r.folder()
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return folder.Read(name, limit)
}
