// Package taskcheck checks task directories: a task must load, its environment must
// start, an agent that does nothing must get no reward, and the task's own
// solution must get one.
package taskcheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Cause is the kind of a defect.
type Cause string

// The causes. CauseUndecided is not a defect of the task: a check that ends with
// it is repeated when the checks are resumed.
const (
	CauseLoad      Cause = "load"      // the folder cannot be read as a task
	CauseNeeds     Cause = "needs"     // no worker has its needs
	CauseImage     Cause = "image"     // its image cannot be built, pulled or used
	CauseSetup     Cause = "setup"     // its health check or a setup command fails
	CauseTime      Cause = "time"      // something takes longer than the task allows
	CauseMemory    Cause = "memory"    // something needs more memory or disk than the task asks for
	CauseNoNumber  Cause = "no number" // the verifier leaves no reward, or several of which none is the headline
	CauseFree      Cause = "free"      // the verifier passes without work
	CauseOracle    Cause = "oracle"    // its own solution does not get the reward
	CauseUndecided Cause = "undecided" // the worker or the sandbox failed
)

// Causes lists all causes in the order in which a rollout can meet them.
func Causes() []Cause {
	return []Cause{CauseLoad, CauseNeeds, CauseImage, CauseSetup, CauseTime, CauseMemory, CauseNoNumber, CauseFree, CauseOracle, CauseUndecided}
}

// Defect is one error of a task.
type Defect struct {
	Cause   Cause  `json:"cause"`
	Agent   string `json:"agent,omitempty"` // nop or oracle; empty: found before an agent ran
	Message string `json:"message"`
}

// Outcome is the end of one rollout of a task.
type Outcome struct {
	Reward  *float64 `json:"reward"`
	Seconds float64  `json:"seconds"`
}

// Report is the check of one task.
type Report struct {
	Dir      string   `json:"dir"`
	Task     string   `json:"task,omitempty"`
	Key      string   `json:"key,omitempty"` // hash of the task's content and of the check's settings
	OK       bool     `json:"ok"`
	Defects  []Defect `json:"defects,omitempty"`
	Nop      *Outcome `json:"nop,omitempty"`
	Oracle   *Outcome `json:"oracle,omitempty"`
	Notes    []string `json:"notes,omitempty"` // remarks that are not defects
	Seconds  float64  `json:"seconds"`
	Recalled bool     `json:"recalled,omitempty"` // from an earlier run
}

// The agents that a check runs.
const (
	Nop    = "nop"
	Oracle = "oracle"
)

// Config lists the tasks and the settings of the checks.
type Config struct {
	Dirs     []string
	Parallel int // number of tasks that are checked at once; default 1
	// Pass is the least reward with which a task counts as solved. Default 1.
	Pass float64
	// Load reads a task. Its error may join several errors.
	Load func(dir string) (*tasks.Task, error)
	// Request makes the request of a task and an agent. An error means that no
	// worker can run it.
	Request func(t *tasks.Task, agent string) (schema.Request, error)
	// Run runs a request on the task's files. Its error is not the task's fault
	// and ends all checks.
	Run func(ctx context.Context, q schema.Request, bundle []byte) (schema.Result, error)
	// Done is called with each report, never concurrently. It may be nil.
	Done func(Report)
	// State stores and recalls finished checks. Nil: no check is stored.
	State *State
}

// Run checks every task and returns the reports in the order of Dirs. It holds
// at most Parallel tasks in memory. When the context ends, Run leaves out the
// reports of unfinished tasks and returns the context's cause.
func Run(ctx context.Context, c Config) ([]Report, error) {
	if c.Pass == 0 {
		c.Pass = 1
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	reports := make([]*Report, len(c.Dirs))
	next := make(chan int)
	var mu sync.Mutex
	var group sync.WaitGroup
	for range max(c.Parallel, 1) {
		group.Go(func() {
			for i := range next {
				r, err := c.one(ctx, c.Dirs[i])
				if err != nil {
					stop(err)
					return
				}
				mu.Lock()
				reports[i] = &r
				if c.Done != nil {
					c.Done(r)
				}
				mu.Unlock()
			}
		})
	}
feed:
	for i := range c.Dirs {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	group.Wait()
	var out []Report
	for _, r := range reports {
		if r != nil {
			out = append(out, *r)
		}
	}
	return out, context.Cause(ctx) // nil when nothing has ended it
}

// one checks a task. An error ends all checks.
func (c *Config) one(ctx context.Context, dir string) (r Report, err error) {
	start := time.Now()
	r = Report{Dir: dir}
	t, err := c.Load(dir)
	if err != nil {
		for _, e := range split(err) {
			message, cause := e.Error(), CauseLoad
			var bad *tasks.Error
			if errors.As(e, &bad) {
				message = bad.Field + ": " + bad.Reason
			}
			var need *tasks.NeedError
			if errors.As(e, &need) {
				cause = CauseNeeds
			}
			r.Defects = append(r.Defects, Defect{cause, "", message})
		}
		return r, nil
	}
	r.Task, r.Notes = t.Request.Task.Name, t.Warnings
	if c.State != nil {
		if r.Key, err = c.State.key(t); err != nil {
			return r, err
		}
		if old, ok := c.State.recall(r.Key); ok {
			old.Dir, old.Recalled = dir, true
			return old, nil
		}
	}
	broken, err := c.try(ctx, t, Nop, &r)
	if err == nil && !broken {
		var solved bool
		if solved, err = hasSolution(t); err == nil && solved {
			_, err = c.try(ctx, t, Oracle, &r)
		}
	}
	if err != nil {
		return r, err
	}
	r.OK, r.Seconds = len(r.Defects) == 0, time.Since(start).Seconds()
	if c.State != nil && !r.has(CauseUndecided) {
		return r, c.State.keep(r)
	}
	return r, nil
}

func (r *Report) has(cause Cause) bool {
	return slices.ContainsFunc(r.Defects, func(d Defect) bool { return d.Cause == cause })
}

// try runs one agent. broken reports a defect that every other agent would meet
// too.
func (c *Config) try(ctx context.Context, t *tasks.Task, agent string, r *Report) (broken bool, err error) {
	start := time.Now()
	q, err := c.Request(t, agent)
	if err != nil {
		r.Defects = append(r.Defects, Defect{CauseNeeds, "", err.Error()})
		return true, nil
	}
	res, err := c.Run(ctx, q, t.Bundle)
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	if err != nil {
		return true, fmt.Errorf("check %s: %w", t.Dir, err)
	}
	out := &Outcome{Reward: res.Reward, Seconds: time.Since(start).Seconds()}
	if agent == Nop {
		r.Nop = out
	} else {
		r.Oracle = out
	}
	for _, n := range res.Notes {
		if !slices.Contains(r.Notes, n) {
			r.Notes = append(r.Notes, n)
		}
	}
	if d := c.judge(agent, &res); d != nil {
		r.Defects = append(r.Defects, *d)
		switch d.Cause {
		case CauseNeeds, CauseImage, CauseSetup:
			return true, nil
		}
	}
	return false, nil
}

// judge returns the defect that a result shows; nil if it shows none.
func (c *Config) judge(agent string, res *schema.Result) *Defect {
	if res.Fault != nil {
		return &Defect{cause(agent, res), agent, res.Fault.Error()}
	}
	switch {
	case res.Reward == nil && len(res.Rewards) > 0:
		return &Defect{CauseNoNumber, agent, fmt.Sprintf("none of the %d rewards is the headline: name it reward, or name it in turngate.reward_key", len(res.Rewards))}
	case res.Reward == nil:
		return &Defect{CauseNoNumber, agent, "there is no reward: the task has no verifier (tests/test.sh)"}
	case agent == Nop && *res.Reward >= c.Pass:
		return &Defect{CauseFree, agent, fmt.Sprintf("the reward is %v although the agent did nothing", *res.Reward)}
	case agent == Oracle && *res.Reward < c.Pass:
		text := fmt.Sprintf("the reward of the task's own solution is %v, less than %v", *res.Reward, c.Pass)
		if res.Exit != nil && !res.Exit.OK() {
			text += "; solve.sh ended with " + res.Exit.String()
		}
		return &Defect{CauseOracle, agent, text}
	}
	return nil
}

// cause returns the cause of a result with a fault.
func cause(agent string, res *schema.Result) Cause {
	f := res.Fault
	for _, p := range res.Phases {
		if p.Exit == nil {
			continue
		}
		switch {
		case p.Exit.TimedOut:
			return CauseTime
		case p.Exit.OOM, p.Exit.Disk:
			return CauseMemory
		}
	}
	switch f.Code {
	case schema.CodeUnsupported, schema.CodeNoWorker, schema.CodeInvalid:
		return CauseNeeds
	case schema.CodeImage, schema.CodeNoImage, schema.CodeImageAuth, schema.CodeImageKind, schema.CodeBadBundle:
		return CauseImage
	case schema.CodeImageRate:
		return CauseUndecided
	case schema.CodeSetup:
		return CauseSetup
	case schema.CodeTimeout:
		return CauseTime
	case schema.CodeOOM, schema.CodeDisk:
		return CauseMemory
	case schema.CodeNoReward:
		return CauseNoNumber
	}
	switch {
	case f.Who == schema.WhoWorker || f.Who == schema.WhoSandbox || f.Who == schema.WhoTrainer:
		return CauseUndecided
	case f.Who == schema.WhoAgent && agent == Oracle:
		return CauseOracle
	default: // a command or a library that the image lacks
		return CauseImage
	}
}

func hasSolution(t *tasks.Task) (bool, error) {
	b, err := tasks.Open(t.Bundle)
	var bad *tasks.BundleError
	if errors.As(err, &bad) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = b.Close() }() // it was only read
	if b.Has("solution/solve.sh") {
		return true, nil
	}
	for _, s := range t.Request.Steps {
		if b.Has("steps/" + s.Name + "/solution/solve.sh") {
			return true, nil
		}
	}
	return false, nil
}

// split returns the parts of a joined error.
func split(err error) []error {
	if list, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // the outermost one is asked
		return list.Unwrap()
	}
	return []error{err}
}

// Count returns the tasks that have each cause.
func Count(reports []Report) map[Cause][]string {
	out := map[Cause][]string{}
	for _, r := range reports {
		seen := map[Cause]bool{}
		for _, d := range r.Defects {
			if !seen[d.Cause] {
				out[d.Cause] = append(out[d.Cause], r.Dir)
			}
			seen[d.Cause] = true
		}
	}
	return out
}
