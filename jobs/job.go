package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/schema"
)

// planName is the file with the plan of a job. In a trial's folder it is the
// file with turngate's whole result.
const planName = "turngate.json"

// maxPlan is the size in bytes of the largest plan or result that is read.
const maxPlan = 256 << 20

// Plan describes a job. It is written before the first rollout begins.
type Plan struct {
	V       int       `json:"v"`
	ID      ulid.ULID `json:"id"`
	Name    string    `json:"name"`
	Created time.Time `json:"created_at"`
	Version string    `json:"version,omitempty"` // of turngate

	// Flags are the flags with which the job was started, by name.
	Flags map[string][]string `json:"flags"`
	Args  []string            `json:"args"`           // arguments before "--"
	Argv  []string            `json:"argv,omitempty"` // arguments after "--"

	Variants []Variant `json:"variants"` // at least one
	Backend  string    `json:"backend"`
	Attempts int       `json:"attempts"` // of each task with each variant
	Parallel int       `json:"parallel"`

	// Worker is the name of the worker inside the process that ran the job. The
	// next process removes the sandboxes that this worker left.
	Worker string `json:"worker,omitempty"`
	State  string `json:"state,omitempty"` // the worker's state folder

	// Stopped is the reason for which the last run ended in order before all trials had a
	// result. StoppedBy is limit, interrupt or error.
	Stopped   string `json:"stopped,omitempty"`
	StoppedBy string `json:"stopped_by,omitempty"`

	Trials []Trial `json:"trials"`

	// Seal tells the program that wrote the plan that it did; see SetSeal.
	Seal string `json:"seal,omitempty"`

	// Harbor is true for a job that Harbor ran. It has no turngate.json, and the ids of its
	// rollouts are made of the names of its trials.
	Harbor bool `json:"-"`
}

// Trial is one rollout of one task with one variant.
type Trial struct {
	Name    string    `json:"name"` // name of the trial's folder
	Rollout schema.ID `json:"rollout"`
	Variant
	Group string `json:"group"`
	Index int    `json:"index"` // in its group
	// Stopped are earlier rollouts of this trial: cancelled ones, and ended ones after
	// which the trial ran again.
	Stopped []schema.ID `json:"stopped,omitempty"`
	// Retried are the ended rollouts after which the trial ran again by Options.Retries.
	Retried []Retried `json:"retried,omitempty"`

	Task   string `json:"task"` // the task's name
	Dir    string `json:"dir"`  // the task's folder, absolute
	Source string `json:"source,omitempty"`
	Digest string `json:"digest"` // sha256 of the task's files as they are submitted

	// Fault is the reason for which the trial cannot run, such as a task that does
	// not load. It becomes the trial's result.
	Fault *schema.Fault `json:"fault,omitempty"`
}

// Names returns the names of the trials by their rollouts.
func (p *Plan) Names() map[schema.ID]string {
	out := make(map[schema.ID]string, len(p.Trials))
	for _, t := range p.Trials {
		out[t.Rollout] = t.Name
	}
	return out
}

// AddTask adds Attempts trials of a task for each variant, which are a group. Their
// rollouts belong to the trainer.
func (p *Plan) AddTask(trainer string, t Task) error {
	for _, v := range p.Variants {
		group := NewGroup()
		for i := range p.Attempts {
			id, err := RolloutID(trainer, group, i)
			if err != nil {
				return err
			}
			p.Trials = append(p.Trials, Trial{
				Name: trialName(t.Dir), Rollout: id, Variant: v, Group: group, Index: i, Task: t.Name, Dir: t.Dir, Source: t.Source, Digest: t.Digest,
			})
		}
	}
	return nil
}

// trialName returns the name of the task's folder, shortened, with a random
// suffix.
func trialName(dir string) string {
	const letters = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
	end := make([]byte, 7)
	_, _ = rand.Read(end) // never fails
	for i, b := range end {
		end[i] = letters[int(b)%len(letters)]
	}
	name := strings.TrimLeft(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, filepath.Base(dir)), ".-")
	name = strings.TrimRight(name[:min(len(name), 32)], "_-")
	return cmp.Or(name, "task") + "__" + string(end)
}

// Job is the folder of a job, open for writing and locked by this process. It is
// safe for concurrent use.
type Job struct {
	Dir  string
	Plan Plan

	lock *os.File
	log  *os.File

	begins sync.Mutex // held while a trial's folder is made

	mu      sync.Mutex
	trials  map[schema.ID]*Trial
	done    map[string]schema.Result // by the trial's name
	begun   map[string]bool
	unread  map[string]error // of trials whose results cannot be read, while their folders have the files
	written time.Time        // when result.json was last written
	due     *time.Timer      // writes it; nil: no write is due
}

// ErrNotEmpty is returned by Create for a folder that is not empty.
var ErrNotEmpty = errors.New("the folder is not empty")

// Create makes the folder of a new job.
func Create(dir string, p Plan) (*Job, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("make the job's folder: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make the job's folder: %w", err)
	}
	// Its files have the rollouts' variables and logs: no other user reads them.
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the job's folder: %w", err)
	}
	if list, err := os.ReadDir(dir); err != nil {
		return nil, fmt.Errorf("make the job's folder: %w", err)
	} else if len(list) > 0 {
		return nil, fmt.Errorf("make the job's folder %s: %w", dir, ErrNotEmpty)
	}
	p.V, p.ID, p.Name = schema.Version, ulid.Make(), filepath.Base(dir)
	p.Created = time.Now().UTC().Truncate(time.Microsecond)
	j, err := lock(dir)
	if err != nil {
		return nil, err
	}
	j.Plan = p
	j.index()
	if err := j.begin(); err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

func (j *Job) begin() error {
	if err := j.save(); err != nil {
		return err
	}
	if err := writeJSON(j.Dir, "config.json", j.config()); err != nil {
		return err
	}
	if err := writeJSON(j.Dir, "lock.json", j.jobLock()); err != nil {
		return err
	}
	return j.WriteResult(true)
}

// Open opens the folder of a job to resume it. Trials without a result start
// again.
func Open(dir string) (*Job, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the job: %w", err)
	}
	if err := IsOwn(dir); err != nil {
		return nil, err
	}
	p, done, err := read(dir)
	if err != nil {
		return nil, err
	}
	j, err := lock(dir)
	if err != nil {
		return nil, err
	}
	j.Plan, j.done, j.unread = p, done, map[string]error{}
	for name, r := range done {
		if err := Unread(&r); err != nil {
			j.unread[name] = err
			delete(done, name)
		}
	}
	j.index()
	return j, nil
}

// A process that looks at the state of a job has its lock for a moment.
const (
	lockTries = 5
	lockWait  = 20 * time.Millisecond
)

// lock locks the folder.
func lock(dir string) (*Job, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the job: %w", err)
	}
	if err := flock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("the job %s %w", dir, err)
	}
	log, err := openLog(dir)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the job's log: %w", err)
	}
	return &Job{Dir: dir, lock: f, log: log, done: map[string]schema.Result{}, begun: map[string]bool{}}, nil
}

// ErrInUse is returned for a job whose folder another process uses.
var ErrInUse = errors.New("is in use by another process")

// flock locks an open folder until it is closed.
func flock(dir *os.File) error {
	for try := 0; ; try++ {
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			return nil
		}
		if try == lockTries {
			return ErrInUse
		}
		<-time.After(lockWait)
	}
}

// openLog opens the log of a job to add lines. A folder of another person may have a FIFO or a
// link in its place.
func openLog(dir string) (*os.File, error) {
	log, err := os.OpenFile(filepath.Join(dir, "job.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := log.Stat(); err != nil || !info.Mode().IsRegular() {
		log.Close()
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", log.Name()), err)
	}
	return log, nil
}

func (j *Job) index() {
	j.trials = make(map[schema.ID]*Trial, len(j.Plan.Trials))
	for i := range j.Plan.Trials {
		j.trials[j.Plan.Trials[i].Rollout] = &j.Plan.Trials[i]
	}
}

// Close unlocks the job for other processes. A write of result.json that is due is left
// out.
func (j *Job) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noneDue()
	j.log.Close()
	j.lock.Close()
}

// save writes the plan.
func (j *Job) save() error { return writeJSON(j.Dir, planName, &j.Plan) }

// SetWorker records the worker inside this process and its state folder. It must
// be called before the worker starts.
func (j *Job) SetWorker(worker, state string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Plan.Worker, j.Plan.State = worker, state
	return j.save()
}

// SetSeal records a sum by which the program that made the job knows it later.
func (j *Job) SetSeal(sum string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Plan.Seal = sum
	return j.save()
}

// Missing returns the trials without a result.
func (j *Job) Missing() []Trial {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Trial
	for _, t := range j.Plan.Trials {
		if _, ok := j.done[t.Name]; !ok {
			out = append(out, t)
		}
	}
	return out
}

// ordered sorts trials by their order in the plan.
func (j *Job) ordered(list []Trial) []Trial {
	at := map[string]int{}
	for i := range j.Plan.Trials {
		at[j.Plan.Trials[i].Name] = i
	}
	slices.SortStableFunc(list, func(a, b Trial) int { return cmp.Compare(at[a.Name], at[b.Name]) })
	return list
}

// Results returns the results so far, in the order of the plan.
func (j *Job) Results() []schema.Result {
	j.mu.Lock()
	defer j.mu.Unlock()
	return inOrder(j.Plan, j.done)
}

func inOrder(p Plan, done map[string]schema.Result) []schema.Result {
	var out []schema.Result
	for _, t := range p.Trials {
		if r, ok := done[t.Name]; ok {
			out = append(out, r)
		}
	}
	return out
}

// Stop gives new rollouts to the trials without a result and returns the trials with
// their old rollouts, which the caller cancels. A resumed job runs the new rollouts. If begun is
// false, trials that have begun are left as they are.
func (j *Job) Stop(begun bool) ([]Trial, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var stopped []Trial
	for i := range j.Plan.Trials {
		t := &j.Plan.Trials[i]
		if _, ok := j.done[t.Name]; ok || !begun && j.begun[t.Name] {
			continue
		}
		next, err := t.Next()
		if err != nil {
			return stopped, err
		}
		stopped = append(stopped, *t)
		*t = next
	}
	j.index()
	return stopped, j.save()
}

// Values of Plan.StoppedBy.
const (
	ByLimit     = "limit"
	ByInterrupt = "interrupt"
	ByError     = "error"
)

// SetStopped records the error that ended a run before all trials had a result. Run does
// so, too.
func (j *Job) SetStopped(err error) error {
	var limit *LimitError
	by, reason := ByError, err.Error()
	switch {
	case errors.As(err, &limit):
		by, reason = ByLimit, limit.Reason
	case errors.Is(err, ErrCancelled):
		by, reason = ByInterrupt, ErrCancelled.Error()
	case errors.Is(err, context.Canceled):
		by, reason = ByInterrupt, interrupted
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Plan.Stopped, j.Plan.StoppedBy = schema.Clip(reason, maxReason), by
	return j.save()
}

// maxReason is the size in bytes of the longest reason for which a job stopped.
const maxReason = 4000

// goOn removes the reason for which the last run ended.
func (j *Job) goOn() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.Plan.Stopped == "" {
		return nil
	}
	j.Plan.Stopped, j.Plan.StoppedBy = "", ""
	return j.save()
}

// withFault returns the trials with a fault that the filter selects.
func (j *Job) withFault(which func(*schema.Result) bool) []Trial {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Trial
	for _, t := range j.Plan.Trials {
		if r, ok := j.done[t.Name]; ok && r.Fault != nil && which(&r) {
			out = append(out, t)
		}
	}
	return out
}

// Next returns a copy of the trial with a new rollout. Rerun saves it.
func (t Trial) Next() (Trial, error) {
	next, err := RolloutID(t.Rollout.Trainer(), t.Group, t.Index, len(t.Stopped)+1)
	if err != nil {
		return t, err
	}
	t.Rollout, t.Stopped = next, append(slices.Clip(t.Stopped), t.Rollout)
	return t, nil
}

// Rerun replaces ended trials with the given ones, which Next made, so that they
// run again. It saves the plan first: from then on, the old results do not count.
func (j *Job) Rerun(list []Trial) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	next := map[string]Trial{}
	for _, t := range list {
		next[t.Name] = t
	}
	p := j.Plan
	p.Trials = slices.Clone(p.Trials)
	for i, t := range p.Trials {
		if n, ok := next[t.Name]; ok {
			p.Trials[i] = n
		}
	}
	if err := writeJSON(j.Dir, planName, &p); err != nil {
		return err
	}
	j.Plan = p
	for name := range next {
		delete(j.done, name)
		delete(j.begun, name)
	}
	j.index()
	for name := range next {
		if err := os.Remove(filepath.Join(j.Dir, name, "result.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a result: %w", err)
		}
	}
	return nil
}

// retry replaces an ended trial with the given one, which Retries made. It saves the
// plan first: from then on, the old result does not count.
func (j *Job) retry(next Trial) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.Plan
	p.Trials = slices.Clone(p.Trials) // others read the old ones
	for i := range p.Trials {
		if p.Trials[i].Name == next.Name {
			p.Trials[i] = next
		}
	}
	if err := writeJSON(j.Dir, planName, &p); err != nil {
		return err
	}
	j.Plan.Trials = p.Trials
	delete(j.done, next.Name)
	delete(j.begun, next.Name)
	j.index()
	return j.setAside(&next)
}

// setAside moves the files of a trial's last ended rollout out of the trial's folder,
// if the trial runs again and they are still there.
func (j *Job) setAside(t *Trial) error {
	last := len(t.Retried) - 1
	if last < 0 {
		return nil
	}
	var r struct {
		ID schema.ID `json:"id"`
	}
	dir, err := stranger.Open(filepath.Join(j.Dir, t.Name))
	if err != nil {
		return nil //nolint:nilerr // it was moved
	}
	defer dir.Close()
	if err := readJSON(dir, planName, &r); err != nil || r.ID != t.Retried[last].Rollout {
		return nil //nolint:nilerr // the folder is that of another rollout, which has not ended
	}
	return j.moveTo(t, t.RetriedDir(last))
}

// moveTo moves the folder of a trial to a path below RetriedName.
func (j *Job) moveTo(t *Trial, to string) error {
	root, err := os.OpenRoot(j.Dir) // the folder may be a link in a job of another person
	if err == nil {
		defer root.Close()
		err = root.MkdirAll(RetriedName, 0o700)
	}
	if err == nil {
		err = root.Rename(t.Name, to)
	}
	if err != nil {
		return fmt.Errorf("keep the earlier rollout of %s: %w", t.Name, err)
	}
	return nil
}

// Unread returns the errors of the results that Open could not read, by the names of their
// trials. These trials run again, or get the result from the system that has it. Their files
// are kept below RetriedName.
func (j *Job) Unread() map[string]error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.unread)
}

// keepUnread moves the files of a trial whose result cannot be read out of its folder.
func (j *Job) keepUnread(t *Trial) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unread[t.Name] == nil {
		return nil
	}
	for n := 1; ; n++ {
		to := path.Join(RetriedName, fmt.Sprintf("%s.unread%d", t.Name, n))
		if _, err := os.Lstat(filepath.Join(j.Dir, to)); err == nil {
			continue
		}
		if err := j.moveTo(t, to); err != nil {
			return err
		}
		delete(j.unread, t.Name)
		return nil
	}
}

// Trial returns the trial of a rollout.
func (j *Job) Trial(id schema.ID) (Trial, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.trials[id]
	if t == nil {
		return Trial{}, false
	}
	return *t, true
}

// uuid returns the UUID that Harbor's files need of a trial, or of the job for
// the empty name.
func (p *Plan) uuid(trial string) string {
	b := [16]byte(p.ID)
	if trial != "" {
		sum := sha256.Sum256([]byte(p.ID.String() + "/" + trial))
		b = [16]byte(sum[:16])
	}
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Read reads the plan and the results of a job of turngate or Harbor, which may be running.
// In place of a result whose file cannot be read it returns one with a fault; see Unread.
func Read(dir string) (Plan, []schema.Result, error) {
	p, done, err := read(dir)
	return p, inOrder(p, done), err
}

// ErrNoJob is returned for a folder that is not a job of turngate or Harbor.
var ErrNoJob = errors.New("this is not the folder of a job: it has no " + planName)

// ErrHarbor is returned if a job of Harbor is to go on.
var ErrHarbor = errors.New("this is a job of Harbor: `harbor job resume` continues it")

// Is returns an error that wraps ErrNoJob if a folder is not the folder of a job, of
// turngate or of Harbor.
func Is(dir string) error {
	err := IsOwn(dir)
	if errors.Is(err, ErrHarbor) {
		return nil
	}
	return err
}

// IsOwn is Is for a job that Open resumes: a folder of Harbor is an ErrHarbor.
func IsOwn(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, planName)); errors.Is(err, fs.ErrNotExist) && isHarbor(dir) {
		return fmt.Errorf("%s: %w", dir, ErrHarbor)
	} else if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, ErrNoJob)
	} else if err != nil {
		return fmt.Errorf("open the job: %w", err)
	}
	return nil
}

func read(dir string) (p Plan, done map[string]schema.Result, err error) {
	job, err := stranger.Open(dir)
	if err != nil {
		return p, nil, fmt.Errorf("open the job: %w", err)
	}
	defer job.Close()
	if err := readJSON(job, planName, &p); errors.Is(err, fs.ErrNotExist) {
		if h, done, ok, err := readHarbor(dir, job); ok {
			return h, done, err
		}
		return p, nil, fmt.Errorf("%s: %w", dir, ErrNoJob)
	} else if err != nil {
		return p, nil, fmt.Errorf("open the job %s: %w", dir, err)
	}
	if err := p.validate(); err != nil {
		return p, nil, fmt.Errorf("%s: %w", filepath.Join(dir, planName), err)
	}
	done = map[string]schema.Result{}
	for i := range p.Trials {
		t := &p.Trials[i]
		r, err := t.resultIn(job)
		switch {
		case err != nil:
			done[t.Name] = t.own(*unread(planName, err))
		case r != nil:
			done[t.Name] = *r
		}
	}
	return p, done, nil
}

// resultIn reads the result of a trial; nil: it has not ended.
func (t *Trial) resultIn(job *stranger.Folder) (*schema.Result, error) {
	dir, err := job.Folder(t.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if dir.Is("result.json") != nil {
		return nil, nil
	}
	var r schema.Result
	if err := readJSON(dir, planName, &r); err != nil {
		return nil, err
	}
	if err := schema.Validate(&r); err != nil {
		return nil, err
	}
	if r.ID != t.Rollout {
		return nil, nil // the result of a rollout that was stopped
	}
	return &r, nil
}

// stageRead is the stage of the fault of a result that cannot be read.
const stageRead = "read"

// unread returns a result in place of one whose file cannot be read.
func unread(file string, err error) *schema.Result {
	text := err.Error()
	if !strings.HasPrefix(text, file) {
		text = file + ": " + text
	}
	return &schema.Result{Status: schema.StatusFailed, Fault: schema.Faultf(stageRead, schema.CodeUnreadable, schema.WhoUser, "%s", text)}
}

// Unread returns the error of a result of Read whose file cannot be read; nil: it was read.
func Unread(r *schema.Result) error {
	if f := r.Fault; f != nil && f.Stage == stageRead && f.Code == schema.CodeUnreadable {
		return f
	}
	return nil
}

// validate checks a plan, which another program may have written.
func (p *Plan) validate() error {
	if p.V != schema.Version {
		return fmt.Errorf("v: %d is not valid: want %d", p.V, schema.Version)
	}
	if err := p.checkVariants(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, t := range p.Trials {
		if t.Name == "" || t.Name != filepath.Base(t.Name) || strings.HasPrefix(t.Name, ".") || t.Name == RetriedName || seen[t.Name] {
			return fmt.Errorf("trials[%d].name: %q is not valid: want the name of a folder, different from the others", i, t.Name)
		}
		seen[t.Name] = true
		if _, err := schema.ParseID(string(t.Rollout)); err != nil {
			return fmt.Errorf("trials[%d].rollout: %w", i, err)
		}
		if len(t.Group) < 11 {
			return fmt.Errorf("trials[%d].group: %q is not valid: want a ULID", i, t.Group)
		}
		if t.Fault != nil {
			if err := schema.Validate(t.Fault); err != nil {
				return fmt.Errorf("trials[%d].%w", i, err)
			}
		}
	}
	return nil
}

// readJSON reads a file of a folder. The error names the file.
func readJSON(dir *stranger.Folder, name string, v any) error {
	data, err := dir.Read(name, maxPlan)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, rawjson.Plain(err))
	}
	return nil
}
