package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trajectory"
)

// maxVersions is the largest number of policy versions that are listed for a rollout.
const maxVersions = 50

// groupFlags select where groups are looked for.
type groupFlags struct {
	rollouts rolloutFlags
	list     listFlags
	output   string
}

func (f *groupFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	f.rollouts.nats.local = func(cmd *cobra.Command, args []string) bool {
		return cmd.Flags().Changed("runs") || cmd.Flags().Changed("job") || cmd.Name() == "ls" && len(args) > 0
	}
	f.rollouts.nats.addTo(fl, "")
	fl.StringVar(&f.rollouts.runs, "runs", "runs", "folder of jobs in which groups are looked for, without --nats")
	fl.StringVar(&f.list.trainer, "trainer", "", "with --nats: trainer of the groups (default: the one in the file name of --creds; for an operator all)")
	fl.IntVar(&f.list.limit, "limit", 1000, "with --nats: largest number of waiting requests, and of other rollouts, of a trainer that are read, the newest ones")
	fl.Uint64Var(&f.list.before, "before", 0, "with --nats: read older rollouts, from the number that the last list ends with")
	f.list.filters.addJob(fl)
	addListOutput(fl, &f.output)
}

// read returns the rollouts of jobs, or with --nats of a system. The error names jobs that
// cannot be read; the rollouts of other jobs are returned all the same.
func (f *groupFlags) read(cmd *cobra.Command, dirs []string) (list []*recorded.Rollout, done func(), err error) {
	done = func() {}
	filter, err := f.list.filters.filter(f.rollouts.nats.url != "")
	if err != nil {
		return nil, done, err
	}
	if f.rollouts.nats.url != "" {
		b, name, err := f.list.dial(cmd, &f.rollouts.nats)
		if err != nil {
			return nil, done, err
		}
		list, err = f.list.read(cmd, b, name, &filter)
		return list, b.Close, err
	}
	if len(dirs) == 0 {
		list, err = recorded.InJobs(f.rollouts.runs)
	}
	for _, dir := range dirs {
		more, bad := recorded.Find(f.rollouts.runs, dir)
		list, err = append(list, more...), errors.Join(err, bad)
	}
	return slices.DeleteFunc(list, func(r *recorded.Rollout) bool { return !filter.Has(r) }), done, err
}

func groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Groups of rollouts of one task: list them, compare their rollouts",
		Long: "Groups of rollouts of one task: list them, compare their rollouts.\n\n" +
			"They are those of the jobs of --runs, or with --nats or a context those of a running system, with the credentials of a trainer or of an operator (ops.nk). " +
			"mean and deviation are those of the rewards that a trainer trains on by default, pass@k is that of all known rewards, if each is 0 or 1.",
	}
	cmd.AddCommand(groupListCommand(), groupGetCommand())
	return cmd
}

func groupListCommand() *cobra.Command {
	f := &groupFlags{}
	cmd := &cobra.Command{
		Use:   "ls [JOB...]",
		Short: "List groups with the states of their rollouts, rewards, pass@k and faults",
		PreRunE: func(_ *cobra.Command, args []string) error {
			return f.list.check(&f.rollouts, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			list, done, bad := f.read(cmd, args)
			defer done()
			var out []groupEntry
			for _, g := range recorded.Groups(list) {
				out = append(out, entryOfGroup(&g))
			}
			if bad != nil && len(out) == 0 {
				return bad
			}
			return errors.Join(printGroups(cmd.OutOrStdout(), f.output, out), bad)
		},
	}
	f.add(cmd)
	return cmd
}

func groupGetCommand() *cobra.Command {
	f := &groupFlags{}
	cmd := &cobra.Command{
		Use:   "get GROUP...",
		Short: "Compare the rollouts of groups: rewards, advantages, policy versions, faults",
		Args:  needArgs(1, 100, "the names of groups"),
		PreRunE: func(*cobra.Command, []string) error {
			return f.list.check(&f.rollouts, nil)
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			list, done, bad := f.read(cmd, nil)
			defer done()
			var out []groupEntry
			found := map[string]bool{}
			for _, g := range recorded.Groups(list) {
				if slices.Contains(names, g.Name) {
					found[g.Name] = true
					e := entryOfGroup(&g)
					e.Members = membersOf(cmd.Context(), &g)
					out = append(out, e)
				}
			}
			for _, name := range names {
				if !found[name] {
					bad = errors.Join(bad, fmt.Errorf("there is no rollout of the group %q among the ones that were read; `turngate group ls` lists the groups", name))
				}
			}
			if len(out) == 0 {
				return bad
			}
			return errors.Join(printMembers(cmd.OutOrStdout(), f.output, out), bad)
		},
	}
	f.add(cmd)
	return cmd
}

// groupEntry is a group in a list.
type groupEntry struct {
	Trainer  string                `json:"trainer"`
	Job      string                `json:"job,omitempty"` // folder of its job; empty: of a running system
	Group    string                `json:"group"`         // empty: rollouts without a group
	Task     string                `json:"task"`          // its title, as of jobs.TaskTitles
	Agent    string                `json:"agent"`
	Rollouts int                   `json:"rollouts"`
	States   map[schema.Status]int `json:"states"`
	Ended    int                   `json:"ended"`
	Rewarded int                   `json:"rewarded"`
	// Mean and Deviation describe the rewards to train on; null: there is none.
	Mean      *float64        `json:"mean"`
	Deviation *float64        `json:"deviation"`
	PassAt    map[int]float64 `json:"pass_at,omitempty"` // as in jobs.Summary
	Faults    []jobs.Cause    `json:"faults"`            // the most frequent first

	Calls            int      `json:"calls"`
	PromptTokens     int64    `json:"prompt_tokens"`
	CompletionTokens int64    `json:"completion_tokens"`
	CostUSD          *float64 `json:"cost_usd"` // null: not known

	Members []groupMember `json:"members,omitempty"`
}

// groupMember is a rollout of a group.
type groupMember struct {
	Rollout   schema.ID     `json:"rollout"`
	Index     int           `json:"index"`
	Status    schema.Status `json:"status"`
	Attempt   int           `json:"attempt"`
	Worker    string        `json:"worker,omitempty"`
	Reward    *float64      `json:"reward"`
	Advantage *float64      `json:"advantage"` // null: a trainer does not train on it
	Use       string        `json:"use,omitempty"`
	Fault     *schema.Fault `json:"fault,omitempty"`
	Calls     int           `json:"calls"`
	Tokens    int64         `json:"tokens"`
	// Versions are the policy versions that answered its calls, in the order of their
	// first answers.
	Versions []string `json:"versions"`
	Missing  string   `json:"versions_missing,omitempty"` // the reason for which they are not known
}

// trainable returns the reward that a trainer trains on by default; nil: none.
func trainable(r *recorded.Rollout) *float64 {
	if r.Result == nil || trainer.DefaultTreatments().Of(r.Result) != trainer.Train {
		return nil
	}
	return r.Result.Reward
}

func trainables(g *recorded.Group) (out []*float64) {
	for _, r := range g.Rollouts {
		out = append(out, trainable(r))
	}
	return out
}

func entryOfGroup(g *recorded.Group) groupEntry {
	e := groupEntry{Trainer: g.Trainer, Job: g.Job, Group: g.Name, Rollouts: len(g.Rollouts), States: map[schema.Status]int{}}
	var results []schema.Result
	for _, r := range g.Rollouts {
		about := r.About()
		e.Task, e.Agent = cmp.Or(e.Task, about.Title), cmp.Or(e.Agent, about.Agent)
		e.States[about.Status]++
		if r.Result != nil {
			results = append(results, *r.Result)
		}
	}
	sum := jobs.Sum(len(g.Rollouts), results)
	e.Ended, e.Rewarded, e.PassAt, e.Faults = sum.Ended, sum.Rewarded, sum.PassAt, sum.Errors
	if e.Faults == nil {
		e.Faults = []jobs.Cause{}
	}
	if g.Name == "" { // of several tasks
		e.PassAt = nil
	}
	e.Calls, e.PromptTokens, e.CompletionTokens, e.CostUSD = sum.Calls, sum.PromptTokens, sum.CompletionTokens, sum.CostUSD
	e.Mean, e.Deviation, _ = compare.Advantages(trainables(g))
	return e
}

// membersOf reads the rollouts of a group with their transcripts.
func membersOf(ctx context.Context, g *recorded.Group) (out []groupMember) {
	_, _, advantages := compare.Advantages(trainables(g))
	for i, r := range g.Rollouts {
		about := r.About()
		m := groupMember{Rollout: r.ID, Index: about.Index, Status: about.Status, Attempt: about.Attempt, Worker: about.Worker, Advantage: advantages[i], Versions: []string{}}
		if r.State != nil {
			m.Fault = r.State.Fault
		}
		if q := r.Result; q != nil {
			m.Reward, m.Fault, m.Use, m.Tokens = q.Reward, q.Fault, string(trainer.DefaultTreatments().Of(q)), q.Tokens()
			for _, c := range q.Calls {
				m.Calls += c.Count
			}
			t, err := r.Read(ctx, trajectory.Options{})
			switch {
			case err == nil:
				all := t.Versions()
				m.Versions = append(m.Versions, all[:min(len(all), maxVersions)]...)
			case !errors.Is(err, recorded.ErrNoTranscript) && !errors.Is(err, trajectory.ErrNoCalls):
				m.Missing = err.Error()
			}
		}
		out = append(out, m)
	}
	return out
}

func printGroups(w io.Writer, output string, list []groupEntry) error {
	if !isTable(output) {
		return printList(w, output, list)
	}
	header := []string{"GROUP", "TASK", "ROLLOUTS", "STATES", "MEAN", "DEVIATION", "PASS", "FAULTS"}
	inJobs := slices.ContainsFunc(list, func(e groupEntry) bool { return e.Job != "" })
	if inJobs {
		header = slices.Concat([]string{"JOB"}, header)
	}
	if output == formatWide {
		header = slices.Concat([]string{"TRAINER"}, header, []string{"AGENT", "CALLS", "TOKENS", "COST"})
	}
	t := newList(w, output, header...)
	t.spare, t.cut, t.names = []string{"DEVIATION", "FAULTS"}, []string{"STATES", "PASS"}, []string{"JOB", "TASK"}
	for _, e := range list {
		cells := []any{dash(oneLine(e.Group, 60)), dash(shortName(oneLine(e.Task, 200), 60)), e.Rollouts, statesText(e.States), progress.Reward(e.Mean), progress.Reward(e.Deviation), passText(e.PassAt), faultsText(e.Faults)}
		if inJobs {
			cells = slices.Concat([]any{dash(oneLine(e.Job, 200))}, cells)
		}
		if output == formatWide {
			cells = slices.Concat([]any{e.Trainer}, cells, []any{dash(oneLine(e.Agent, 40)), e.Calls, fmt.Sprintf("%d + %d", e.PromptTokens, e.CompletionTokens), progress.Dollars(e.CostUSD)})
		}
		t.row(cells...)
	}
	return t.flush()
}

func printMembers(w io.Writer, output string, list []groupEntry) error {
	if !isTable(output) {
		return printList(w, output, list)
	}
	for i, e := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "group %s of %s, task %s, agent %s: %s\n", oneLine(e.Group, 60), e.Trainer, dash(oneLine(e.Task, 100)), dash(oneLine(e.Agent, 40)), statesText(e.States))
		fmt.Fprintf(w, "mean %s, deviation %s, %s, faults %s, cost %s\n", progress.Reward(e.Mean), progress.Reward(e.Deviation), cmp.Or(strings.TrimPrefix(passText(e.PassAt), "-"), "pass@k not known"), faultsText(e.Faults), progress.Dollars(e.CostUSD))
		t := newList(w, output, "ROLLOUT", "INDEX", "STATUS", "REWARD", "ADVANTAGE", "USE", "CALLS", "TOKENS", "VERSIONS", "FAULT")
		t.spare, t.cut = []string{"TOKENS", "USE"}, []string{"VERSIONS", "FAULT"}
		for _, m := range e.Members {
			fault, versions := "-", strings.Join(m.Versions, ",")
			if m.Fault != nil {
				fault = m.Fault.Error()
			}
			if m.Missing != "" {
				versions = "not known"
			}
			t.row(m.Rollout, m.Index, m.Status, progress.Reward(m.Reward), progress.Reward(m.Advantage), dash(m.Use), m.Calls, m.Tokens, dash(oneLine(versions, 200)), oneLine(fault, 300))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	return nil
}

// statesText counts rollouts by state: the states in their order, and unknown ones.
func statesText(states map[schema.Status]int) string {
	order := recorded.Statuses()
	var parts []string
	for _, s := range slices.SortedFunc(maps.Keys(states), func(a, b schema.Status) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a), slices.Index(order, b)), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%d %s", states[s], oneLine(string(s), 20)))
	}
	return strings.Join(parts, ", ")
}

// faultsText counts faults by code.
func faultsText(faults []jobs.Cause) string {
	var parts []string
	for _, c := range faults {
		parts = append(parts, fmt.Sprintf("%d %s", c.Count, oneLine(c.Code, 40)))
	}
	return dash(strings.Join(parts, ", "))
}
