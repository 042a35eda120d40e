package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// listFlags select the rollouts of a running system.
type listFlags struct {
	name   string
	before uint64
	limit  int
}

func rolloutListCommand(f *rolloutFlags) *cobra.Command {
	var output string
	var l listFlags
	cmd := &cobra.Command{
		Use:   "ls [JOB...]",
		Short: "List rollouts: those of jobs, or with --nats those of a trainer",
		Long: "List rollouts: those of jobs, or with --nats those of a trainer: the requests that wait, and the newest rollouts that run or have ended.\n\n" +
			"With the credentials of an operator (ops.nk), and for a file without a trainer's name if --name is missing, the rollouts that run now are listed, of all trainers.",
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{atLeast("limit", l.limit, 1)}
			if l.name != "" {
				wrong = append(wrong, flagOf("name", schema.CheckTrainer(l.name)))
			}
			if f.nats.url != "" && len(args) > 0 {
				wrong = append(wrong, errors.New("--nats: it lists no jobs: leave out their folders"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []*recorded.Rollout
			var bad error
			switch {
			case f.nats.url != "":
				var err error
				if list, err = l.onSystem(cmd, &f.nats); err != nil {
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
			return errors.Join(printRollouts(cmd, output, list), bad)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&l.name, "name", "", "with --nats: trainer whose rollouts are listed (default: the one in the file name of --creds)")
	fl.IntVar(&l.limit, "limit", 100, "with --nats: largest number of waiting requests, and of other rollouts")
	fl.Uint64Var(&l.before, "before", 0, "with --nats: list older rollouts, from the number that the last list ends with")
	addOutput(fl, &output, "table", "json", "jsonl")
	return cmd
}

// onSystem returns the rollouts of a trainer, or as an operator those that run now.
func (l *listFlags) onSystem(cmd *cobra.Command, nats *natsFlags) ([]*recorded.Rollout, error) {
	b, name, err := nats.dialReader(cmd, l.name)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if name == "" {
		return recorded.On(b).Running(cmd.Context())
	}
	list, next, err := recorded.On(b).Rollouts(cmd.Context(), name, l.before, l.limit)
	if next > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "older rollouts: --before %d\n", next)
	}
	return list, err
}

// printRollouts lists rollouts. The JSON formats have the results of ended
// rollouts only.
func printRollouts(cmd *cobra.Command, output string, list []*recorded.Rollout) error {
	out := cmd.OutOrStdout()
	if output != "table" {
		var results []schema.Result
		for _, r := range list {
			if r.Result != nil {
				results = append(results, *r.Result)
			}
		}
		return printResults(out, output, results, nil)
	}
	t := newTable(out, "ROLLOUT", "TASK", "AGENT", "ATTEMPT", "STATUS", "REWARD", "CALLS", "TRIAL")
	t.spare, t.cut, t.names = []string{"AGENT", "ATTEMPT"}, []string{"STATUS"}, []string{"TASK", "TRIAL"}
	for _, r := range list {
		task, agent, attempt, status, reward, calls, trial := "-", "-", 0, "waits or runs", "-", 0, "-"
		if q := r.Asked; q != nil {
			task, agent = q.Task.Name, q.Agent.Name
		}
		if r.Trial != nil {
			task, agent, trial = r.Trial.Task, r.Trial.Agent, r.Job+"/"+r.Trial.Name
		}
		if r.State != nil {
			attempt, status = r.State.Attempt, string(r.State.Status)
		}
		if q := r.Result; q != nil {
			task, agent, attempt, status, reward = q.Task, q.Agent, q.Attempt, string(q.Status), rewardText(q.Reward)
			if q.Fault != nil {
				status += " (" + q.Fault.Code + ")"
			}
			for _, c := range q.Calls {
				calls += c.Count
			}
		}
		t.row(dash(string(r.ID)), oneLine(task, 40), oneLine(agent, 20), attempt, oneLine(status, 40), reward, calls, oneLine(trial, 200))
	}
	return t.flush()
}
