package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// listFlags select the rollouts of a running system.
type listFlags struct {
	trainer string
	before  uint64
	limit   int
	filters filterFlags
}

// maxScanned is the largest number of rollouts of a trainer that are read for a list with
// filters.
const maxScanned = 5000

func rolloutListCommand(f *rolloutFlags) *cobra.Command {
	var output string
	var l listFlags
	cmd := &cobra.Command{
		Use:   "ls [JOB...]",
		Short: "List the rollouts of jobs, or with --nats of a trainer",
		Long: "List the rollouts of jobs, or with --nats of a trainer: the requests that wait, and the newest rollouts that run or have ended.\n\n" +
			"All of --status, --group, --task, --agent, --label, --reward and --job must hold for a rollout that is listed.\n\n" +
			"With the credentials of an operator (ops.nk) the newest rollouts of each trainer are listed, or those of --trainer, without the requests that wait.",
		PreRunE: func(_ *cobra.Command, args []string) error {
			return l.check(f, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []*recorded.Rollout
			var bad error
			filter, err := l.filters.filter(f.nats.url != "")
			if err != nil {
				return err
			}
			switch {
			case f.nats.url != "":
				if list, err = l.onSystem(cmd, &f.nats, &filter); err != nil {
					return err
				}
			case len(args) == 0:
				list, bad = recorded.InJobs(f.runs)
			}
			for _, name := range args {
				more, err := recorded.Find(f.runs, name)
				bad = errors.Join(bad, err)
				list = append(list, more...)
			}
			list = slices.DeleteFunc(list, func(r *recorded.Rollout) bool { return !filter.Has(r) })
			return errors.Join(printRollouts(cmd, output, list), bad)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&l.trainer, "trainer", "", "with --nats: trainer of the rollouts (default: the one in the file name of --creds; for an operator all)")
	fl.IntVar(&l.limit, "limit", 100, "with --nats: largest number of waiting requests, and of other rollouts, of a trainer")
	fl.Uint64Var(&l.before, "before", 0, "with --nats: list older rollouts, from the number that the last list ends with")
	l.filters.add(fl)
	addListOutput(fl, &output)
	return cmd
}

// check checks the flags, and the names of jobs.
func (l *listFlags) check(f *rolloutFlags, dirs []string) error {
	wrong := []error{atLeast("limit", l.limit, 1)}
	if l.trainer != "" {
		wrong = append(wrong, flagOf("trainer", schema.CheckTrainer(l.trainer)))
	}
	if f.nats.url != "" && len(dirs) > 0 {
		wrong = append(wrong, errors.New("--nats: it lists no jobs: leave out their folders"))
	}
	_, err := l.filters.filter(f.nats.url != "")
	wrong = append(wrong, err)
	return usageOf(wrong...)
}

// dial connects as the trainer of the listed rollouts, or as an operator, with an empty name.
func (l *listFlags) dial(cmd *cobra.Command, nats *natsFlags) (b *broker.Broker, name string, err error) {
	name = l.trainer
	if role, _ := broker.RoleOf(nats.creds); role == broker.RoleOps {
		name = ""
	}
	return nats.dialReader(cmd, name)
}

// onSystem returns the rollouts of a trainer, or as an operator of all trainers.
func (l *listFlags) onSystem(cmd *cobra.Command, nats *natsFlags, filter *recorded.Filter) ([]*recorded.Rollout, error) {
	b, name, err := l.dial(cmd, nats)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return l.read(cmd, b, name, filter)
}

// read returns the rollouts that the client of this name may read; empty: an operator. It reads
// older rollouts until the filter has selected enough.
func (l *listFlags) read(cmd *cobra.Command, b *broker.Broker, name string, filter *recorded.Filter) (all []*recorded.Rollout, err error) {
	s, of := recorded.On(b), []string{cmp.Or(name, l.trainer)}
	if of[0] == "" {
		if l.before > 0 {
			return nil, usage("--before: want --trainer, too: each trainer has numbers of its own")
		}
		if of, err = s.Trainers(cmd.Context()); err != nil {
			return nil, err
		}
	}
	for _, tid := range of {
		next := l.before
		for read, found, first := 0, 0, true; found < l.limit && read < maxScanned && (first || next > 0); first = false {
			var list []*recorded.Rollout
			if list, next, err = s.Rollouts(cmd.Context(), tid, next, l.limit-found, name != ""); err != nil {
				return nil, err
			}
			for _, r := range list {
				read++
				if filter.Has(r) {
					all = append(all, r)
				}
				if filter.Has(r) && r.About().Status != schema.StatusQueued { // --limit holds for these and the others
					found++
				}
			}
		}
		if next > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "older rollouts of %s: --trainer %s --before %d\n", tid, tid, next)
		}
	}
	return all, nil
}

// printRollouts lists rollouts. The formats of data have the results of ended
// rollouts only.
func printRollouts(cmd *cobra.Command, output string, list []*recorded.Rollout) error {
	out := cmd.OutOrStdout()
	if !isTable(output) {
		var results []schema.Result
		for _, r := range list {
			if r.Result != nil {
				results = append(results, *r.Result)
			}
		}
		return printList(out, output, results)
	}
	header := []string{"ROLLOUT", "TASK", "AGENT", "ATTEMPT", "STATUS", "REWARD", "CALLS", "COST"}
	inJobs := slices.ContainsFunc(list, func(r *recorded.Rollout) bool { return r.Trial != nil })
	if inJobs {
		header = append(header, "JOB", "TRIAL")
	}
	t := newList(out, output, header...)
	t.spare, t.cut, t.names = []string{"AGENT", "ATTEMPT"}, []string{"STATUS"}, []string{"TASK", "JOB", "TRIAL"}
	for _, r := range list {
		a := r.About()
		status, reward, calls, cost, job, trial := string(a.Status), "-", 0, "-", "-", "-"
		if r.Trial != nil {
			job, trial = r.Job, r.Trial.Name
		}
		if q := r.Result; q != nil {
			reward = rewardText(q.Reward)
			if q.Fault != nil && q.Fault.Code != status {
				status += " (" + q.Fault.Code + ")"
			}
			for _, c := range q.Calls {
				calls += c.Count
			}
			cost = progress.Dollars(q.CostUSD())
		}
		cells := []any{dash(string(r.ID)), shortName(oneLine(dash(a.Title), 200), 40), oneLine(dash(a.Agent), 20), a.Attempt, oneLine(status, 40), reward, calls, cost}
		if inJobs {
			cells = append(cells, oneLine(job, 200), oneLine(trial, 200))
		}
		t.row(cells...)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return printTrainers(out, list)
}

// printTrainers sums up the listed rollouts of each trainer of a running system.
func printTrainers(w io.Writer, list []*recorded.Rollout) error {
	count, results := map[string]int{}, map[string][]schema.Result{}
	for _, r := range list {
		if !r.OfSystem() {
			return nil
		}
		count[r.ID.Trainer()]++
		if r.Result != nil {
			results[r.ID.Trainer()] = append(results[r.ID.Trainer()], *r.Result)
		}
	}
	if len(count) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "TRAINER", "LISTED", "ENDED", "MEAN", "CALLS", "TOKENS", "COST")
	for _, tid := range slices.Sorted(maps.Keys(count)) {
		s := jobs.Sum(count[tid], results[tid])
		t.row(tid, s.Trials, s.Ended, progress.Reward(s.Mean), s.Calls, fmt.Sprintf("%d + %d", s.PromptTokens, s.CompletionTokens), progress.Dollars(s.CostUSD))
	}
	return t.flush()
}
