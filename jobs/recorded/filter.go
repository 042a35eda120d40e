package recorded

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Filter selects rollouts of a list. Empty fields select all.
type Filter struct {
	Statuses []schema.Status
	// Patterns of path.Match, or the whole name. That of a job is its folder's name or path.
	Group, Task, Agent, Job string
	Labels                  map[string]string // a rollout of a folder has them once it has ended
	Reward                  *RewardTest
}

// Statuses lists the statuses that a rollout of a list may have.
func Statuses() []schema.Status {
	return []schema.Status{StatusOpen, schema.StatusQueued, schema.StatusRunning, schema.StatusCancelling, schema.StatusDone, schema.StatusFailed, schema.StatusCancelled, schema.StatusDead}
}

// Empty reports whether the filter selects all rollouts.
func (f *Filter) Empty() bool {
	return len(f.Statuses)+len(f.Labels) == 0 && f.Group+f.Task+f.Agent+f.Job == "" && f.Reward == nil
}

// Has reports whether the filter selects a rollout.
func (f *Filter) Has(r *Rollout) bool {
	a := r.About()
	labels := map[string]string{}
	switch {
	case r.Result != nil:
		labels = r.Result.Labels
	case r.Asked != nil:
		labels = r.Asked.Labels
	}
	for name, value := range f.Labels {
		if has, ok := labels[name]; !ok || has != value {
			return false
		}
	}
	return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, a.Status)) &&
		fits(f.Group, a.Group) && fits(f.Task, a.Task, a.Title, r.taskFolder()) && fits(f.Agent, a.Agent) &&
		fits(f.Job, r.Job, filepath.Base(r.Job)) && (f.Reward == nil || f.Reward.has(r.Result))
}

// taskFolder returns the name of the folder of the rollout's task; empty: it is not known.
func (r *Rollout) taskFolder() string {
	if r.Trial == nil {
		return ""
	}
	return filepath.Base(r.Trial.Dir)
}

// fits reports whether one of the names is the pattern or matches it.
func fits(pattern string, names ...string) bool {
	return pattern == "" || slices.ContainsFunc(names, func(name string) bool {
		ok, _ := path.Match(pattern, name)
		return ok || name == pattern
	})
}

// RewardTest is a condition of a reward.
type RewardTest struct {
	operator string // empty: there is no reward
	value    float64
}

// ParseReward reads a condition such as >=0.5, 1 or none.
func ParseReward(text string) (*RewardTest, error) {
	invalid := fmt.Errorf("%q is not valid: want a condition such as \">=0.5\", 1, \"!=0\" or none (not known)", schema.Clip(text, 80))
	if text == "none" {
		return &RewardTest{}, nil
	}
	parts := regexp.MustCompile(`^(>=|<=|!=|>|<|=)?\s*([-+.0-9eE]+)$`).FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return nil, invalid
	}
	value, err := strconv.ParseFloat(parts[2], 64)
	if err != nil {
		return nil, invalid
	}
	if parts[1] == "" {
		parts[1] = "="
	}
	return &RewardTest{parts[1], value}, nil
}

// has reports whether the reward of a result fulfils the condition. A reward that is not known
// fulfils only that there is none.
func (c *RewardTest) has(q *schema.Result) bool {
	if q == nil || q.Reward == nil {
		return c.operator == ""
	}
	r := *q.Reward
	switch c.operator {
	case ">=":
		return r >= c.value
	case "<=":
		return r <= c.value
	case ">":
		return r > c.value
	case "<":
		return r < c.value
	case "!=":
		return r != c.value
	case "=":
		return r == c.value
	default:
		return false
	}
}
