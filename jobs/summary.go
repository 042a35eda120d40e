package jobs

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/schema"
)

// Summary sums up the results of a job so far.
type Summary struct {
	Trials   int      `json:"trials"`
	Ended    int      `json:"ended"`
	Rewarded int      `json:"rewarded"` // number of rollouts with a known reward
	Mean     *float64 `json:"mean"`     // mean of the known rewards; null: none is known
	// PassAt maps k to the chance that at least one of k rollouts of a task
	// passes, over the tasks with k rewards or more. Nil unless all rewards are 0
	// or 1.
	PassAt map[int]float64 `json:"pass_at,omitempty"`
	Errors []Cause         `json:"errors,omitempty"` // the most frequent first

	Calls            int     `json:"calls"`
	PromptTokens     int64   `json:"prompt_tokens"`
	CompletionTokens int64   `json:"completion_tokens"`
	CachedTokens     int64   `json:"cached_tokens"` // of the prompt tokens
	Seconds          float64 `json:"seconds"`       // sum over all rollouts
	// CostUSD is the sum of the known costs; null: none is known. Unpriced counts the
	// rollouts with tokens and without a known cost.
	CostUSD  *float64 `json:"cost_usd"`
	Unpriced int      `json:"unpriced,omitempty"`

	SandboxSeconds float64 `json:"sandbox_seconds"` // sum over all rollouts
	// SandboxUSD is the sum of the known prices of sandboxes, which CostUSD does not have;
	// null: none is known. SandboxUnpriced counts the rollouts with sandboxes of unknown price.
	SandboxUSD      *float64 `json:"sandbox_usd"`
	SandboxUnpriced int      `json:"sandbox_unpriced,omitempty"`
}

// Cause counts the faults of one kind.
type Cause struct {
	Stage   string `json:"stage,omitempty"`
	Code    string `json:"code"`
	Who     string `json:"who,omitempty"`
	Count   int    `json:"count"`
	Example string `json:"example"` // message of one of the faults
	// BestReward is the highest reward of those results with the fault that others replaced.
	BestReward *float64 `json:"best_reward,omitempty"`
}

// replaced takes note of the reward of a result that another one replaced.
func (c *Cause) replaced(reward *float64) {
	if reward != nil && (c.BestReward == nil || *reward > *c.BestReward) {
		c.BestReward = reward
	}
}

// pay adds the costs of a rollout.
func (s *Summary) pay(r *schema.Result) {
	cost := r.CostUSD()
	s.CostUSD = plus(s.CostUSD, cost)
	if cost == nil && r.Tokens() > 0 {
		s.Unpriced++
	}
	if r.Usage == nil {
		return
	}
	s.SandboxSeconds += r.Usage.SandboxSeconds
	s.SandboxUSD = plus(s.SandboxUSD, r.Usage.SandboxUSD)
	if r.Usage.SandboxUSD == nil {
		s.SandboxUnpriced++
	}
}

// plus adds a cost to a sum of known costs; nil: it is not known, or none is.
func plus(sum, cost *float64) *float64 {
	if sum == nil || cost == nil {
		return cmp.Or(sum, cost)
	}
	both := *sum + *cost
	return &both
}

// Faults returns the number of rollouts with a fault.
func (s *Summary) Faults() int {
	n := 0
	for _, c := range s.Errors {
		n += c.Count
	}
	return n
}

// Sum returns the summary of the results of a job with the given number of
// trials.
func Sum(trials int, results []schema.Result) Summary {
	s := Summary{Trials: trials, Ended: len(results)}
	total, binary := 0.0, true
	passed := map[string][]bool{}
	faults := causes{}
	for i := range results {
		r := &results[i]
		for _, c := range r.Calls {
			s.Calls += c.Count
			s.PromptTokens += c.PromptTokens
			s.CompletionTokens += c.CompletionTokens
			s.CachedTokens += c.CachedTokens
		}
		s.pay(r)
		for _, p := range r.Phases {
			s.Seconds += float64(p.MS) / 1000
		}
		if f := r.Fault; f != nil {
			faults.add(f)
		}
		if r.Reward == nil {
			continue
		}
		s.Rewarded++
		total += *r.Reward
		binary = binary && (*r.Reward == 0 || *r.Reward == 1)
		group := cmp.Or(r.Group, r.Task) // a trainer need not name a group
		passed[group] = append(passed[group], *r.Reward == 1)
	}
	if s.Rewarded > 0 {
		mean := total / float64(s.Rewarded)
		s.Mean = &mean
	}
	if binary {
		s.PassAt = passAt(passed)
	}
	s.Errors = faults.sorted()
	return s
}

// causes counts faults by stage, code and party.
type causes map[[3]string]*Cause

func (c causes) add(f *schema.Fault) *Cause {
	key := [3]string{f.Stage, f.Code, f.Who}
	if c[key] == nil {
		c[key] = &Cause{Stage: f.Stage, Code: f.Code, Who: f.Who, Example: f.Message}
	}
	c[key].Count++
	return c[key]
}

func (c causes) sorted() (list []Cause) {
	for _, one := range c {
		list = append(list, *one)
	}
	slices.SortFunc(list, func(a, b Cause) int {
		return cmp.Or(-cmp.Compare(a.Count, b.Count), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Who, b.Who))
	})
	return list
}

// passAt estimates pass@k without bias (Chen and others, "Evaluating Large
// Language Models Trained on Code", 2021) for 1, the powers of two and the multiples
// of five up to the largest group.
func passAt(groups map[string][]bool) map[int]float64 {
	largest := 0
	for _, g := range groups {
		largest = max(largest, len(g))
	}
	out := map[int]float64{}
	for k := 1; k <= largest; k++ {
		if k%5 != 0 && k&(k-1) != 0 {
			continue
		}
		sum, n := 0.0, 0
		for _, name := range slices.Sorted(maps.Keys(groups)) { // another order gives another last digit
			g := groups[name]
			if len(g) < k {
				continue
			}
			failed := 0
			for _, ok := range g {
				if !ok {
					failed++
				}
			}
			none := 1.0 // the chance that all of k rollouts fail
			for i := range k {
				none *= max(0, float64(failed-i)) / float64(len(g)-i)
			}
			sum += 1 - none
			n++
		}
		out[k] = sum / float64(n)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// writeEvery is the interval at which a running job's result.json is written.
const writeEvery = 2 * time.Second

// WriteResult writes the job's result.json. Unless now is true, it writes at most once
// in writeEvery: a later call in that time has the file written at the end of it.
func (j *Job) WriteResult(now bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if wait := writeEvery - time.Since(j.written); !now && wait > 0 {
		if j.due == nil {
			j.due = time.AfterFunc(wait, j.writeDue)
		}
		return nil
	}
	return j.writeResult()
}

// writeDue writes the result.json that is due. The last write of a run reports an error
// that stays.
func (j *Job) writeDue() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.due == nil { // it was written meanwhile, or the job is closed
		return
	}
	if err := j.writeResult(); err != nil {
		j.Logf("%v", err)
	}
}

// writeResult writes result.json, after which none is due. The caller holds j.mu.
func (j *Job) writeResult() error {
	j.noneDue()
	j.written = time.Now()
	return writeJSON(j.Dir, "result.json", j.result())
}

// noneDue makes no result.json due. The caller holds j.mu.
func (j *Job) noneDue() {
	if j.due != nil {
		j.due.Stop()
		j.due = nil
	}
}

type harborJob struct {
	ID       string      `json:"id"`
	Started  time.Time   `json:"started_at"`
	Updated  time.Time   `json:"updated_at"`
	Finished *time.Time  `json:"finished_at"`
	Trials   int         `json:"n_total_trials"`
	Stats    harborStats `json:"stats"`
}

type harborStats struct {
	Completed int                    `json:"n_completed_trials"`
	Errored   int                    `json:"n_errored_trials"`
	Running   int                    `json:"n_running_trials"`
	Pending   int                    `json:"n_pending_trials"`
	Cancelled int                    `json:"n_cancelled_trials"`
	Retries   int                    `json:"n_retries"`
	Evals     map[string]*harborEval `json:"evals"`
	Input     int64                  `json:"n_input_tokens"`
	Cached    int64                  `json:"n_cache_tokens"`
	Output    int64                  `json:"n_output_tokens"`
	CostUSD   *float64               `json:"cost_usd,omitempty"`
}

type harborEval struct {
	Trials     int                            `json:"n_trials"`
	Errors     int                            `json:"n_errors"`
	Metrics    []map[string]float64           `json:"metrics"`
	PassAt     map[int]float64                `json:"pass_at_k"`
	Rewards    map[string]map[string][]string `json:"reward_stats"`
	Exceptions map[string][]string            `json:"exception_stats"`
}

// result returns Harbor's model of the job. The caller holds j.mu.
func (j *Job) result() harborJob {
	p := &j.Plan
	now := time.Now().UTC().Truncate(time.Microsecond)
	out := harborJob{ID: p.uuid(""), Started: p.Created, Updated: now, Trials: len(p.Trials)}
	st := &out.Stats
	st.Evals = map[string]*harborEval{}
	by := map[string][]schema.Result{}
	for i := range p.Trials {
		t := &p.Trials[i]
		st.Retries += len(t.Retried)
		r, ok := j.done[t.Name]
		if !ok {
			if j.begun[t.Name] {
				st.Running++
			} else {
				st.Pending++
			}
			continue
		}
		st.Completed++
		st.Retries += max(0, r.Attempt-1)
		if u := usage(&r); u != nil {
			st.Input += u.Input
			st.Cached += u.Cached
			st.Output += u.Output
			st.CostUSD = plus(st.CostUSD, u.CostUSD)
		}
		key := t.evalKey()
		e := st.Evals[key]
		if e == nil {
			e = &harborEval{Metrics: []map[string]float64{}, PassAt: map[int]float64{}, Rewards: map[string]map[string][]string{}, Exceptions: map[string][]string{}}
			st.Evals[key] = e
		}
		by[key] = append(by[key], r)
		e.add(t, &r, st)
	}
	for key, list := range by {
		s := Sum(len(list), list)
		if m := means(&s, list); len(m) > 0 {
			st.Evals[key].Metrics = append(st.Evals[key].Metrics, m)
		}
		maps.Copy(st.Evals[key].PassAt, s.PassAt)
	}
	if st.Completed == len(p.Trials) {
		out.Finished = &now
	}
	return out
}

// means returns the metrics of results in Harbor's form: the mean by the name of each number if
// there are several names, and else one mean. Unknown numbers do not count.
func means(s *Summary, results []schema.Result) map[string]float64 {
	sums, counts := map[string]float64{}, map[string]int{}
	for i := range results {
		if all := rewards(results[i].Reward, results[i].Rewards); all != nil {
			for name, n := range all.Rewards {
				sums[name] += n
				counts[name]++
			}
		}
	}
	if len(sums) > 1 {
		for name := range sums {
			sums[name] /= float64(counts[name])
		}
		return sums
	}
	if s.Mean == nil {
		return nil
	}
	return map[string]float64{"mean": *s.Mean}
}

func (e *harborEval) add(t *Trial, r *schema.Result, st *harborStats) {
	if all := rewards(r.Reward, r.Rewards); all != nil {
		e.Trials++
		for name, v := range all.Rewards {
			if e.Rewards[name] == nil {
				e.Rewards[name] = map[string][]string{}
			}
			value := strconv.FormatFloat(v, 'f', -1, 64)
			if v == math.Trunc(v) {
				value = strconv.FormatFloat(v, 'f', 1, 64)
			}
			e.Rewards[name][value] = append(e.Rewards[name][value], t.Name)
		}
	}
	x := exception(r)
	if x == nil {
		return
	}
	e.Errors++
	st.Errored++
	e.Exceptions[x.Type] = append(e.Exceptions[x.Type], t.Name)
	if x.Type == "CancelledError" {
		st.Cancelled++
	}
}

func (t *Trial) evalKey() string {
	key := t.Agent + "__"
	if t.Model != "" {
		key += t.Model + "__"
	}
	return key + cmp.Or(t.Source, "adhoc")
}

// finished returns the time at which a job of these results ended: that of its result.json, or,
// if that has none, the end of the last phase of a rollout.
func finished(dir string, results []schema.Result) *time.Time {
	var r struct {
		Finished *time.Time `json:"finished_at"`
	}
	if job, err := stranger.Open(dir); err == nil {
		defer job.Close()
		if readJSON(job, "result.json", &r) == nil && r.Finished != nil {
			return r.Finished
		}
	}
	var last int64
	for i := range results {
		for _, p := range results[i].Phases {
			last = max(last, p.Start+p.MS)
		}
	}
	if last == 0 {
		return nil
	}
	at := time.UnixMilli(last).UTC()
	return &at
}
