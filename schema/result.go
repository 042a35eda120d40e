package schema

import (
	"fmt"
	"math"
)

// Status of a rollout.
type Status string

// The statuses. The last four are terminal.
const (
	StatusQueued     Status = "queued"
	StatusRunning    Status = "running"
	StatusCancelling Status = "cancelling"
	StatusDone       Status = "done"      // ran and was verified; a fault of the agent is possible
	StatusFailed     Status = "failed"    // could not run to its end; a new try would not help
	StatusCancelled  Status = "cancelled" // the trainer or an operator asked for it
	StatusDead       Status = "dead"      // every try was used up
)

// Terminal reports whether the status is final.
func (s Status) Terminal() bool {
	switch s {
	case StatusDone, StatusFailed, StatusCancelled, StatusDead:
		return true
	default:
		return false
	}
}

// Result is the outcome of a rollout. Every submitted request gets exactly one.
type Result struct {
	V       int    `json:"v"`
	ID      ID     `json:"id"`
	Trainer string `json:"trainer"`
	Group   string `json:"group,omitempty"`
	Index   int    `json:"index"`
	Task    string `json:"task,omitempty"` // the request's task.name
	Attempt int    `json:"attempt"`
	Status  Status `json:"status"`

	Reward  *float64           `json:"reward"` // null: not known, which is not 0
	Rewards SortedMap[float64] `json:"rewards,omitempty"`
	Metrics SortedMap[float64] `json:"metrics,omitempty"`
	Fault   *Fault             `json:"fault,omitempty"` // with steps: the first fault of a step
	Exit    *Exit              `json:"exit,omitempty"`  // of the agent; with steps: of the last step that ran
	// Separation tells how far the verifier was from the agent: same-user,
	// other-user or separate. With steps: the smallest. Empty: no verifier ran.
	Separation string       `json:"separation,omitempty"`
	Steps      []StepResult `json:"steps,omitempty"` // the steps that ran

	Phases     []Phase              `json:"phases,omitempty"`
	Calls      SortedMap[CallStats] `json:"calls,omitempty"` // by tag
	Usage      *ResultUsage         `json:"usage,omitempty"` // nil: no sandbox was made
	Committed  []Committed          `json:"committed,omitempty"`
	Artifacts  []Artifact           `json:"artifacts,omitempty"`
	Transcript string               `json:"transcript,omitempty"` // an artifact's name
	// TranscriptTruncated counts the last lines that did not fit into the
	// transcript. If it is not 0, the record of the calls is incomplete.
	TranscriptTruncated int `json:"transcript_truncated,omitempty"`
	// Notes are sentences for people, for example about limits that were only
	// watched or parts of the task that are not supported.
	Notes        []string          `json:"notes,omitempty"`
	Edits        []string          `json:"edits,omitempty"` // as in Reply, of all calls
	Worker       string            `json:"worker,omitempty"`
	Agent        string            `json:"agent,omitempty"`
	AgentVersion string            `json:"agent_version,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
}

// Phase is a part of a rollout, with its time.
type Phase struct {
	Name   string `json:"name"`             // create, upload, setup[0], agent, verify, step/<name>/agent, ...
	Start  int64  `json:"start"`            // Unix ms, for people
	MS     int64  `json:"ms"`               // duration
	Exit   *Exit  `json:"exit,omitempty"`   // when the phase ran a command
	Output string `json:"output,omitempty"` // tail of its output
}

// ResultUsage counts the resources of an attempt besides its model calls.
type ResultUsage struct {
	// SandboxSeconds is the sum of the times for which the sandboxes of agent and verifiers
	// existed, each with its side-cars.
	SandboxSeconds float64 `json:"sandbox_seconds"`
	// SandboxUSD is the price of this time. Nil: the worker has no price for one of them.
	SandboxUSD *float64 `json:"sandbox_usd,omitempty"`
}

// CallStats counts the calls of one tag.
type CallStats struct {
	Count            int   `json:"count"`
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	CachedTokens     int64 `json:"cached_tokens,omitempty"` // of the prompts, which the model server had cached
	// CostUSD is the sum of the answers' costs. Nil if the cost of an answer is not
	// known.
	CostUSD *float64 `json:"cost_usd,omitempty"`
	Refused int      `json:"refused,omitempty"` // answers that were refused
}

// CostUSD returns the cost of all calls of the rollout; nil: it made no call, or the
// cost of an answer is not known.
func (r *Result) CostUSD() *float64 {
	var sum *float64
	for _, c := range r.Calls {
		switch {
		case c.CostUSD != nil && sum == nil:
			own := *c.CostUSD
			sum = &own
		case c.CostUSD != nil:
			*sum += *c.CostUSD
		case c.PromptTokens+c.CompletionTokens > 0:
			return nil
		}
	}
	return sum
}

// Tokens returns the number of prompt and completion tokens of all calls of the
// rollout.
func (r *Result) Tokens() int64 {
	var sum int64
	for _, c := range r.Calls {
		sum += c.PromptTokens + c.CompletionTokens
	}
	return sum
}

// Committed names a generation that reached the agent. Train only on these
// generations.
type Committed struct {
	Call   int    `json:"call"`
	Gen    string `json:"gen"`
	Digest []byte `json:"digest,omitempty"`
	Shard  string `json:"shard,omitempty"`
	Tag    string `json:"tag,omitempty"`
}

// Artifact is a file that the rollout left, kept in the object store under its
// sha256.
type Artifact struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func (r *Result) check() error {
	if _, err := ParseID(string(r.ID)); err != nil {
		return err
	}
	if !r.Status.Terminal() {
		return invalid("status", r.Status, "want done, failed, cancelled or dead")
	}
	if err := checkRange("attempt", r.Attempt, 0, 1<<30); err != nil {
		return err
	}
	if r.Fault != nil {
		if err := r.Fault.check(); err != nil {
			return err
		}
	}
	if err := checkRewards("", r.Reward, r.Rewards); err != nil {
		return err
	}
	if err := checkFinite("metrics", r.Metrics); err != nil {
		return err
	}
	for tag, c := range r.Calls {
		if c.CostUSD != nil && (!(*c.CostUSD >= 0) || math.IsInf(*c.CostUSD, 0)) {
			return invalid(fmt.Sprintf("calls[%s].cost_usd", tag), *c.CostUSD, "want 0 or more USD, or nothing if it is not known")
		}
	}
	if err := checkCount("steps", len(r.Steps), maxSteps); err != nil {
		return err
	}
	for i := range r.Steps {
		s, field := &r.Steps[i], fmt.Sprintf("steps[%d]", i)
		if err := CheckStepName(field+".name", s.Name); err != nil {
			return err
		}
		if err := checkRewards(field+".", s.Reward, s.Rewards); err != nil {
			return err
		}
		if s.Fault != nil {
			if err := s.Fault.check(); err != nil {
				return err
			}
		}
	}
	if err := r.Usage.validate(); err != nil {
		return err
	}
	if err := checkTextList("notes", r.Notes, maxText); err != nil {
		return err
	}
	for i, a := range r.Artifacts {
		if err := CheckSHA256(fmt.Sprintf("artifacts[%d].sha256", i), a.SHA256); err != nil {
			return err
		}
	}
	for i, p := range r.Phases {
		if err := checkText(fmt.Sprintf("phases[%d].output", i), p.Output, maxText); err != nil {
			return err
		}
	}
	return nil
}

// checkRewards refuses rewards that JSON does not have.
func checkRewards(field string, reward *float64, all SortedMap[float64]) error {
	if reward != nil {
		if err := checkNumber(field+"reward", *reward); err != nil {
			return err
		}
	}
	return checkFinite(field+"rewards", all)
}

func checkFinite(field string, all SortedMap[float64]) error {
	for name, n := range all {
		if err := checkNumber(fmt.Sprintf("%s[%s]", field, name), n); err != nil {
			return err
		}
	}
	return nil
}

func (u *ResultUsage) validate() error {
	if u == nil {
		return nil
	}
	if n := u.SandboxSeconds; !(n >= 0) || math.IsInf(n, 0) {
		return invalid("usage.sandbox_seconds", n, "want 0 or more")
	}
	if c := u.SandboxUSD; c != nil && (!(*c >= 0) || math.IsInf(*c, 0)) {
		return invalid("usage.sandbox_usd", *c, "want 0 or more USD, or nothing if it is not known")
	}
	return nil
}
