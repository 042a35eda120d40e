// Package analyze finds in recorded rollouts, by rules, the reasons for which a person
// would read them: rewards that may not come from work, agents that gave up or went in
// circles, tools that failed.
//
// The text of agents, models and tools is not trusted. It is read, never run, within
// bounds of size and depth, and findings cite a bounded part of it, which a caller cleans
// before a terminal gets it.
package analyze

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Codes of findings. A finding of the level error means that the reward may not come
// from the agent's work; one of the level warning that an agent tried so in vain, or
// that the rollout should be read; one of the level info is a fact about its tools.
const (
	CodeRewardWithoutWork = "reward_without_work" // the reward is above 0, and the model called no tool
	CodeRewardTouched     = "reward_touched"      // a call changes files below /logs/verifier
	CodeTestsTouched      = "tests_touched"       // a call changes files below /tests
	CodeTestsRead         = "tests_read"          // a call reads files below /tests, or searches for them
	CodeSolutionSought    = "solution_sought"     // a call uses /solution, or searches for it
	CodeProgramReplaced   = "program_replaced"    // a call writes a program or a module that a verifier starts
	CodeGaveUp            = "gave_up"             // the agent's last words say that it gave up
	CodeRepeats           = "repeats"             // calls, or short rounds of calls, repeat; see package trajectory
	CodeLength            = "length"              // the rollout ended at a length: of an answer, the context, or its number of calls or tokens
	CodeToolError         = "tool_error"          // a tool refused a call: no such tool, or arguments that are not valid
	CodeMissingProgram    = "missing_program"     // a command starts a program that the sandbox does not have
	CodeUnreadCommand     = "unread_command"      // a command is larger than the rules read
)

// Codes returns all codes, in the order in which reports have them.
func Codes() []string {
	return []string{
		CodeRewardWithoutWork, CodeRewardTouched, CodeTestsTouched, CodeTestsRead, CodeSolutionSought, CodeProgramReplaced,
		CodeGaveUp, CodeRepeats, CodeLength, CodeToolError, CodeMissingProgram, CodeUnreadCommand,
	}
}

// Bounds of the texts of a finding, in bytes.
const (
	maxText  = 400
	maxCited = 1000
)

// maxOfCode is the largest number of findings of one code in a rollout.
const maxOfCode = 20

// Finding is a finding in a rollout.
type Finding struct {
	Rollout schema.ID `json:"rollout"`
	Trial   string    `json:"trial,omitempty"`
	Task    string    `json:"task"`
	jobs.Variant
	Reward *float64 `json:"reward"` // null: not known
	trajectory.Finding
	Cited string `json:"cited,omitempty"` // the part of the command, the answer or the result
}

// Count counts the findings of one code in the rollouts of a task by an agent and model.
type Count struct {
	Task string `json:"task"`
	jobs.Variant
	Code     string `json:"code"`
	Rollouts int    `json:"rollouts"` // with such a finding
	Of       int    `json:"of"`       // rollouts of the task with the agent and the model that were read
	Rewarded int    `json:"rewarded"` // of Rollouts: with a reward above 0
	Findings int    `json:"findings"` // including the ones beyond Report.Findings
}

// Unread is a rollout that was not read.
type Unread struct {
	Rollout schema.ID `json:"rollout"`
	Trial   string    `json:"trial,omitempty"`
	Reason  string    `json:"reason"`
}

// Report has the findings in the rollouts of a job.
type Report struct {
	Rollouts int       `json:"rollouts"` // that were read
	Counts   []Count   `json:"counts"`   // by code, in the order of Codes, then by task, agent and model
	Findings []Finding `json:"findings"` // in the order of the rollouts; at most 20 of a code in each
	Unread   []Unread  `json:"unread"`
	Readings []Reading `json:"readings,omitempty"` // of a judge; Rollouts leaves them empty
}

// Rollouts reads rollouts and returns the report about them. A rollout without a
// transcript that can be read is among Report.Unread. The error is the cause of the
// context's end.
func Rollouts(ctx context.Context, list []*recorded.Rollout) (*Report, error) {
	out := &Report{Counts: []Count{}, Findings: []Finding{}, Unread: []Unread{}}
	type pair struct {
		task string
		jobs.Variant
	}
	counts, read := map[Count]*Count{}, map[pair]int{}
	for _, r := range list {
		t, err := r.Read(ctx, trajectory.Options{Messages: true, WithoutLogprobs: true})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if r.Unread != nil {
			err = r.Unread
		}
		if err != nil {
			out.Unread = append(out.Unread, unreadOf(r, err))
			continue
		}
		of := headOf(r)
		out.Rollouts++
		read[pair{of.Task, of.Variant}]++
		had := map[string]int{}
		for _, f := range find(ctx, r, t) {
			f.Rollout, f.Trial, f.Task, f.Variant, f.Reward = of.Rollout, of.Trial, of.Task, of.Variant, of.Reward
			key := Count{Task: f.Task, Variant: f.Variant, Code: f.Code}
			c := counts[key]
			if c == nil {
				c = &Count{Task: f.Task, Variant: f.Variant, Code: f.Code}
				counts[key] = c
			}
			if c.Findings++; had[f.Code] == 0 {
				c.Rollouts++
				if f.Reward != nil && *f.Reward > 0 {
					c.Rewarded++
				}
			}
			if had[f.Code]++; had[f.Code] <= maxOfCode {
				out.Findings = append(out.Findings, f)
			}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, c := range counts {
		c.Of = read[pair{c.Task, c.Variant}]
		out.Counts = append(out.Counts, *c)
	}
	place := func(code string) int { return slices.Index(Codes(), code) }
	slices.SortFunc(out.Counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(place(a.Code), place(b.Code)), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Model, b.Model))
	})
	return out, nil
}

func unreadOf(r *recorded.Rollout, err error) Unread {
	u := Unread{Rollout: r.ID, Reason: err.Error()}
	if r.Trial != nil {
		u.Trial = r.Trial.Name
	}
	if errors.Is(err, recorded.ErrNoTranscript) || errors.Is(err, trajectory.ErrNoCalls) {
		u.Reason = "it made no model call, or has not ended"
	}
	return u
}

// headOf returns a finding with the rollout's names alone.
func headOf(r *recorded.Rollout) Finding {
	f := Finding{Rollout: r.ID}
	if r.Result != nil {
		f.Task, f.Agent, f.Reward = r.Result.Task, r.Result.Agent, r.Result.Reward
	}
	if r.Trial != nil {
		f.Trial, f.Task, f.Variant = r.Trial.Name, r.About().Title, r.Trial.Variant
	}
	return f
}

// finder applies the rules to one rollout.
type finder struct {
	r     *recorded.Rollout
	t     *trajectory.Rollout
	tools []*toolCall
	own   map[string]bool // folders that the task names, which are its own
	found []Finding
}

func find(ctx context.Context, r *recorded.Rollout, t *trajectory.Rollout) []Finding {
	f := &finder{r: r, t: t, own: map[string]bool{}}
	texts := instructions(r, t)
	for _, dir := range []string{testsDir, solutionDir} {
		f.own[dir] = slices.ContainsFunc(texts, func(text string) bool { return named(text, dir) })
	}
	f.readTools(ctx)
	for _, c := range f.tools {
		f.checkUses(c)
		f.checkResult(c)
	}
	f.checkEnd()
	f.checkRounds()
	for _, old := range t.Findings {
		if old.Code == CodeRepeats {
			f.found = append(f.found, Finding{Finding: old})
		}
	}
	slices.SortStableFunc(f.found, func(a, b Finding) int { return cmp.Compare(a.Call, b.Call) })
	return f.found
}

func (f *finder) add(level, code string, call int, cited, format string, args ...any) {
	text := schema.Clip(fmt.Sprintf(format, args...), maxText)
	f.found = append(f.found, Finding{Finding: trajectory.Finding{Level: level, Code: code, Call: call, Text: text}, Cited: schema.Clip(strings.TrimSpace(cited), maxCited)})
}
