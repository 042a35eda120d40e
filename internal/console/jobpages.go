package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// maxTasks is the largest number of tasks that a page of a job shows.
const maxTasks = 2000

// JobInfo is a job in the list of jobs.
type JobInfo struct {
	Job      string    `json:"job"` // the name of its folder
	State    string    `json:"state"`
	Agents   []string  `json:"agents"`
	Models   []string  `json:"models"` // empty: each agent's only one
	Created  time.Time `json:"created_at"`
	Stopped  string    `json:"stopped,omitempty"` // the reason for which the last run ended early
	Trouble  string    `json:"trouble,omitempty"` // the reason for which the job, or its state, cannot be read
	Variants []JobCell `json:"variants"`          // over all tasks
	jobs.Summary
}

// JobPage is a job with each task.
type JobPage struct {
	JobInfo
	Tasks   []JobTask    `json:"tasks"`
	More    int          `json:"more,omitempty"` // tasks that are left out
	Retries []jobs.Cause `json:"retries"`        // faults for which trials ran again
}

// JobTask is a task with each agent and model.
type JobTask struct {
	Task     string    `json:"task"`
	Dir      string    `json:"dir"`
	Variants []JobCell `json:"variants"`
}

// JobCell is one agent with one model, over all tasks or for one.
type JobCell struct {
	compare.Cell
	// Trainer and Group name the group of the task's rollouts.
	Trainer string `json:"trainer,omitempty"`
	Group   string `json:"group,omitempty"`
}

// jobPages answers requests about jobs. It remembers the pages of a job until the job's files
// change.
type jobPages struct {
	runs *Folder // nil: there are none

	mu    sync.Mutex
	known map[string]knownJob // by the folder
}

type knownJob struct {
	at   stamp
	page JobPage
}

func newJobPages(runs *Folder) *jobPages { return &jobPages{runs: runs, known: map[string]knownJob{}} }

func (p *jobPages) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/jobs", p.list)
	mux.HandleFunc("GET /api/job", p.page)
	mux.HandleFunc("GET /api/compare", p.compare)
}

// read returns the page of a job, with the state that it has now.
func (p *jobPages) read(ctx context.Context, dir string) (JobPage, error) {
	page, err := p.files(dir)
	if err != nil {
		return page, err
	}
	state, err := jobs.StateOf(ctx, dir)
	page.State = string(state)
	if err != nil {
		page.Trouble = plain.Line(err.Error(), maxFault)
	}
	return page, nil
}

// files returns the page of a job without its state.
func (p *jobPages) files(dir string) (JobPage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := stampOf(dir)
	known, ok := p.known[dir]
	if !ok || known.at != at {
		list, err := recorded.InJob(dir)
		if err != nil {
			return JobPage{}, err
		}
		known = knownJob{at, pageOf(dir, list)}
		p.known[dir] = known
	}
	return known.page, nil
}

// pageOf has the figures of compare.NewReport, in texts that are safe.
func pageOf(dir string, list []*recorded.Rollout) JobPage {
	out := JobPage{JobInfo: JobInfo{Job: jobName(dir), Variants: []JobCell{}}, Tasks: []JobTask{}, Retries: []jobs.Cause{}}
	if len(list) == 0 {
		return out
	}
	type place struct {
		jobs.Variant
		dir string
	}
	p, results, groups := list[0].Plan, []schema.Result{}, map[place]Row{}
	for _, r := range list {
		if r.Result != nil {
			results = append(results, *r.Result)
		}
		groups[place{r.Trial.Variant, r.Trial.Dir}] = rowOf(r)
	}
	report := compare.NewReport(p, results)
	out.Summary = jobs.Sum(len(p.Trials), results)
	out.Errors, out.Retries = causes(out.Errors), append(out.Retries, causes(report.Retries)...)
	out.Agents, out.Models, out.Created, out.Stopped = cells(p.Agents()), cells(p.Models()), p.Created, plain.Line(p.Stopped, maxFault)
	for _, c := range report.Variants {
		out.Variants = append(out.Variants, jobCell(c))
	}
	out.More = max(len(report.Tasks)-maxTasks, 0)
	for _, t := range report.Tasks[:len(report.Tasks)-out.More] {
		task := JobTask{Task: cell(t.Task), Dir: cell(t.Dir)}
		for _, c := range t.Variants {
			row := groups[place{c.Variant, t.Dir}]
			shown := jobCell(c)
			shown.Trainer, shown.Group = row.Trainer, row.Group
			task.Variants = append(task.Variants, shown)
		}
		out.Tasks = append(out.Tasks, task)
	}
	return out
}

func jobCell(c compare.Cell) JobCell {
	c.Agent, c.Model, c.Errors = cell(c.Agent), cell(c.Model), causes(c.Errors)
	return JobCell{Cell: c}
}

func cells(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = cell(s)
	}
	return out
}

func causes(list []jobs.Cause) []jobs.Cause {
	out := slices.Clone(list)
	for i := range out {
		c := &out[i]
		c.Stage, c.Code, c.Who, c.Example = cell(c.Stage), cell(c.Code), cell(c.Who), plain.Line(c.Example, maxFault)
	}
	return out
}

// readAtOnce is the number of jobs that are read side by side.
const readAtOnce = 16

// list answers with all jobs, the newest first.
func (p *jobPages) list(w http.ResponseWriter, r *http.Request) {
	if p.runs == nil {
		http.Error(w, errNoJobs.Error(), http.StatusNotFound)
		return
	}
	dirs, bad := p.runs.jobs()
	out := struct {
		Jobs    []JobInfo `json:"jobs"`
		Trouble string    `json:"trouble,omitempty"`
	}{Jobs: []JobInfo{}}
	out.Jobs = make([]JobInfo, len(dirs))
	reading, ctx := errgroup.WithContext(r.Context())
	reading.SetLimit(readAtOnce)
	for i, dir := range dirs {
		reading.Go(func() error {
			page, err := p.read(ctx, dir)
			page.Job = jobName(dir)
			if err != nil {
				page.Trouble = plain.Line(err.Error(), maxFault)
			}
			out.Jobs[i] = page.JobInfo
			return nil
		})
	}
	_ = reading.Wait()
	slices.SortStableFunc(out.Jobs, func(a, b JobInfo) int { return b.Created.Compare(a.Created) })
	if bad != nil {
		out.Trouble = plain.Line(bad.Error(), maxFault)
	}
	writeJSON(w, out)
}

var errNoJobs = errors.New("a running system keeps no jobs: start the console with the folder of a job")

// dir returns the folder of a job by its name.
func (p *jobPages) dir(name string) (string, error) {
	if p.runs == nil {
		return "", errNoJobs
	}
	dirs, err := p.runs.jobs()
	for _, dir := range dirs {
		if jobName(dir) == name {
			return dir, nil
		}
	}
	return "", errors.Join(errors.New("there is no such job here"), err)
}

// page answers with the job that the request names.
func (p *jobPages) page(w http.ResponseWriter, r *http.Request) {
	dir, err := p.dir(r.URL.Query().Get("job"))
	var page JobPage
	if err == nil {
		page, err = p.read(r.Context(), dir)
	}
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusNotFound)
		return
	}
	writeJSON(w, page)
}
