package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/schema"
)

// Retries has the number of times that a trial runs again, by the cause of its fault.
// A cause is Infrastructure, a code of a fault, or a code with its party in front, such
// as agent_timeout. Of the causes that fit a fault the narrowest one counts.
type Retries map[string]int

// Infrastructure is the cause of a rollout that did not end as done, with a fault of its
// sandbox or its worker.
const Infrastructure = "infrastructure"

// maxRetries is the largest number of retries of a trial for one cause.
const maxRetries = 100

// retryCodes returns the codes of faults that a result can have.
func retryCodes() []string {
	return []string{
		schema.CodeAgentError, schema.CodeBadAnswer, schema.CodeBadBundle, schema.CodeCallCap, schema.CodeContext, schema.CodeDisk, schema.CodeExit, schema.CodeImage,
		schema.CodeImageAuth, schema.CodeImageKind, schema.CodeImageRate, schema.CodeInternal, schema.CodeInvalid, schema.CodeMissing, schema.CodeNoCalls, schema.CodeNoImage,
		schema.CodeNoReward, schema.CodeNoTrainer, schema.CodeNoWorker, schema.CodeOOM, schema.CodeRefused, schema.CodeRepeats, schema.CodeService, schema.CodeSetup, schema.CodeSpoiled,
		schema.CodeTimeout, schema.CodeTokenCap, schema.CodeTooLarge, schema.CodeUnreadable, schema.CodeUnsupported,
	}
}

func retryParties() []string {
	return []string{schema.WhoAgent, schema.WhoTask, schema.WhoSandbox, schema.WhoTrainer, schema.WhoWorker, schema.WhoUser}
}

// ParseRetries reads retries such as "infrastructure=3,agent_timeout=1".
func ParseRetries(text string) (Retries, error) {
	r := Retries{}
	if text == "" {
		return r, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		cause, number, ok := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.Atoi(number)
		if !ok || err != nil || n < 0 || n > maxRetries {
			return nil, fmt.Errorf("%q is not valid: want CAUSE=NUMBER with a number from 0 to %d, such as infrastructure=3", part, maxRetries)
		}
		if err := checkCause(cause); err != nil {
			return nil, err
		}
		if _, twice := r[cause]; twice {
			return nil, fmt.Errorf("%q is given twice", cause)
		}
		r[cause] = n
	}
	return r, nil
}

func checkCause(cause string) error {
	if cause == Infrastructure || slices.Contains(retryCodes(), cause) {
		return nil
	}
	who, code, _ := strings.Cut(cause, "_")
	if slices.Contains(retryParties(), who) && slices.Contains(retryCodes(), code) {
		return nil
	}
	return fmt.Errorf("%q is not a cause: want %s, a code (%s), or a code with its party in front (%s), such as agent_timeout",
		cause, Infrastructure, strings.Join(retryCodes(), ", "), strings.Join(retryParties(), ", "))
}

// cause returns the narrowest cause that fits a result; empty: none.
func (r Retries) cause(res *schema.Result) string {
	f := res.Fault
	if f == nil || res.Status == schema.StatusCancelled {
		return ""
	}
	fits := []string{f.Who + "_" + f.Code, f.Code}
	if res.Status != schema.StatusDone && (f.Who == schema.WhoSandbox || f.Who == schema.WhoWorker) {
		fits = append(fits, Infrastructure)
	}
	for _, cause := range fits {
		if _, ok := r[cause]; ok {
			return cause
		}
	}
	return ""
}

// Keeps reports whether a trial with this result never runs again: it has a reward of at
// least below. Without a bound, nil, each reward above 0 is kept.
func Keeps(res *schema.Result, below *float64) bool {
	switch {
	case res.Reward == nil:
		return false
	case below == nil:
		return *res.Reward > 0
	default:
		return *res.Reward >= *below
	}
}

// next returns the trial with a new rollout if it runs again after a result. A result that
// Keeps keeps is final.
func (r Retries) next(t Trial, res *schema.Result, below *float64) (next Trial, again bool, err error) {
	if Keeps(res, below) {
		return t, false, nil
	}
	cause := r.cause(res)
	for _, before := range t.Retried {
		if before.Cause == cause {
			r = maps.Clone(r)
			r[cause]--
		}
	}
	if cause == "" || r[cause] <= 0 {
		return t, false, nil
	}
	next, err = t.Next()
	next.Retried = append(slices.Clip(t.Retried), Retried{Rollout: res.ID, Cause: cause, Fault: *res.Fault, Reward: res.Reward})
	return next, err == nil, err
}

// Retried is an ended rollout of a trial that ran again.
type Retried struct {
	Rollout schema.ID    `json:"rollout"`
	Cause   string       `json:"cause"` // in the job's Retries
	Fault   schema.Fault `json:"fault"`
	Reward  *float64     `json:"reward,omitempty"` // that its result had; nil: none
}

// RetriedName is the folder of a job with the rollouts of trials that ran again.
const RetriedName = "retried"

// RetriedDir returns the folder, below that of the job, of the trial's earlier rollout
// with an index in Retried. It has the files that the trial's folder had.
func (t *Trial) RetriedDir(index int) string {
	return path.Join(RetriedName, t.Name+"."+strconv.Itoa(index+1))
}

// retried returns the results after which trials ran again. One that cannot be read is left
// out, with a line in the log.
func (j *Job) retried() ([]schema.Result, error) {
	job, err := stranger.Open(j.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the results of trials that ran again: %w", err)
	}
	defer job.Close()
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []schema.Result
	for _, t := range j.Plan.Trials {
		for i := range t.Retried {
			var r schema.Result
			err := readJSON(job, path.Join(t.RetriedDir(i), planName), &r)
			switch {
			case err == nil:
				out = append(out, r)
			case !errors.Is(err, fs.ErrNotExist): // a process that died had not moved it yet, or a person removed it
				j.Logf("the cost of an earlier rollout of %s does not count: %v", t.Name, err)
			}
		}
	}
	return out, nil
}

// Causes counts the faults for which trials ran again, the most frequent first.
func (p *Plan) Causes() []Cause {
	all := causes{}
	for _, t := range p.Trials {
		for i := range t.Retried {
			all.add(&t.Retried[i].Fault).replaced(t.Retried[i].Reward)
		}
	}
	return all.sorted()
}
