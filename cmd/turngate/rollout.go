package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// rolloutFlags select where rollouts are looked for. All sub-commands of `turngate
// rollout` have them.
type rolloutFlags struct {
	nats natsFlags
	runs string
	ops  bool
}

func (f *rolloutFlags) add(fl *pflag.FlagSet) {
	f.nats.local = namesFiles
	f.nats.addTo(fl, "")
	fl.StringVar(&f.runs, "runs", "runs", "folder of jobs in which names are looked for, without --nats")
}

// namesFiles reports whether the arguments or --runs name files of this machine, so
// that the current context is not used.
func namesFiles(cmd *cobra.Command, args []string) bool {
	names, _ := atDash(cmd, args)
	switch cmd.Name() {
	case "cancel", "retry", "shell", "watch":
		return false
	case "ls":
		return len(names) > 0 || cmd.Flags().Changed("runs") || cmd.Flags().Changed("job")
	case "cp":
		names = names[:min(1, len(names))]
	}
	return cmd.Flags().Changed("runs") || slices.ContainsFunc(names, func(name string) bool {
		_, none := os.Lstat(name)
		_, err := schema.ParseID(name)
		return none == nil || err != nil
	})
}

// find returns the rollouts with the given names. They are readable until done
// is called.
func (f *rolloutFlags) find(cmd *cobra.Command, names []string) (list []*recorded.Rollout, done func(), err error) {
	if f.nats.url == "" {
		for _, name := range names {
			more, err := recorded.Find(f.runs, name)
			if err != nil {
				return nil, nil, err
			}
			list = append(list, more...)
		}
		return list, func() {}, nil
	}
	b, list, err := f.onSystem(cmd, names)
	if err != nil {
		return nil, nil, err
	}
	return list, b.Close, nil
}

// onSystem returns the rollouts of a running system with the given ids. The caller closes
// the broker.
func (f *rolloutFlags) onSystem(cmd *cobra.Command, names []string) (*broker.Broker, []*recorded.Rollout, error) {
	b, ids, err := f.dial(cmd, names)
	if err != nil {
		return nil, nil, err
	}
	var list []*recorded.Rollout
	for _, id := range ids {
		r, err := recorded.On(b).Rollout(cmd.Context(), id, !f.ops)
		if err != nil {
			b.Close()
			return nil, nil, err
		}
		list = append(list, r)
	}
	return b, list, nil
}

// dial connects as the trainer to which all rollouts belong, or as an operator.
func (f *rolloutFlags) dial(cmd *cobra.Command, names []string) (*broker.Broker, []schema.ID, error) {
	var ids []schema.ID
	var wrong []error
	for _, name := range names {
		id, err := schema.ParseID(name)
		if err == nil && len(ids) > 0 && id.Trainer() != ids[0].Trainer() {
			err = fmt.Errorf("%s belongs to another trainer than %s: name the rollouts of one trainer", id, ids[0])
		}
		ids, wrong = append(ids, id), append(wrong, err)
	}
	if err := usageOf(wrong...); err != nil {
		return nil, nil, err
	}
	role, who := "trainer", ids[0].Trainer()
	if f.ops {
		role, who = "ops", "ops"
	}
	b, err := f.nats.dial(cmd.Context(), role, who, logger(cmd))
	return b, ids, err
}

// side connects as the trainer to which all rollouts belong, by default to defaultURL.
// The caller closes the broker.
func (f *rolloutFlags) side(cmd *cobra.Command, names []string) (*broker.Broker, *queue.Trainer, []schema.ID, error) {
	f.nats.url = cmp.Or(f.nats.url, defaultURL)
	b, ids, err := f.dial(cmd, names)
	if err != nil {
		return nil, nil, nil, err
	}
	side, err := queue.NewTrainer(b, ids[0].Trainer())
	if err != nil {
		b.Close()
		return nil, nil, nil, err
	}
	return b, side, ids, nil
}

func rolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Recorded rollouts: list, show, export as training rows, replay",
		Long: "Recorded rollouts: list them, show them, export them as training rows, run them again.\n\n" +
			"A rollout is named by its id, by the name of its trial, or by the path of a trial, a job (all its rollouts) or a transcript. " +
			"Names are looked for in the jobs of --runs. With --nats or a context an id is looked for on a running system, with the credentials of its trainer.",
	}
	f := &rolloutFlags{}
	f.add(cmd.PersistentFlags())
	cmd.AddCommand(rolloutListCommand(f), rolloutGetCommand(f), rolloutShowCommand(f), rolloutExportCommand(f), rolloutReplayCommand(f), rolloutLogsCommand(f), rolloutCopyCommand(f), rolloutCancelCommand(f), rolloutRetryCommand(f), rolloutWatchCommand(f), rolloutShellCommand(f))
	return cmd
}

func rolloutGetCommand(f *rolloutFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get ROLLOUT",
		Short: "Print a rollout's result as JSON, or its state if it has not ended",
		Long:  "Print a rollout's result as JSON, or its state if it has not ended. For one in the queue of a running system, stderr has the reason why no worker has taken it, with a line for each reason for which workers cannot run it.",
		Args:  needArgs(1, 1, "one rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.nats.url == "" {
				list, done, err := f.find(cmd, args)
				if err != nil {
					return err
				}
				defer done()
				return printRecords(cmd.OutOrStdout(), list)
			}
			b, list, err := f.onSystem(cmd, args)
			if err != nil {
				return err
			}
			defer b.Close()
			if err := printRecords(cmd.OutOrStdout(), list); err != nil {
				return err
			}
			return f.printWaits(cmd, b, list)
		},
	}
	cmd.Flags().BoolVar(&f.ops, "ops", false, "the credentials are those of an operator")
	return cmd
}

// printRecords prints the result of each rollout, or else its state.
func printRecords(w io.Writer, list []*recorded.Rollout) (err error) {
	var missing []error
	for _, r := range list {
		switch {
		case r.Result != nil:
			err = printJSON(w, r.Result)
		case r.State != nil:
			err = printJSON(w, r.State)
		default:
			missing = append(missing, fmt.Errorf("%s has no result yet", r.Name()))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(missing...)
}

// printWaits tells on stderr why rollouts are in the queue.
func (f *rolloutFlags) printWaits(cmd *cobra.Command, b *broker.Broker, list []*recorded.Rollout) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Second)
	defer cancel()
	for _, r := range list {
		if r.State == nil || r.State.Status != schema.StatusQueued || r.Asked == nil {
			continue
		}
		trainer := r.ID.Trainer()
		if f.ops {
			trainer = ""
		}
		why, err := operate.On(b, trainer).Waits(ctx, r.Asked)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "it is in the queue: %s\n", why)
	}
	return nil
}

func rolloutShowCommand(f *rolloutFlags) *cobra.Command {
	var o trajectory.Options
	cmd := &cobra.Command{
		Use:   "show ROLLOUT",
		Short: "Show a rollout as a tree of its model calls, with roles, tools, tokens and findings",
		Args:  needArgs(1, 1, "one rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Messages = true
			return f.each(cmd, args, func(ctx context.Context, r *recorded.Rollout) error {
				t, err := r.Read(ctx, o)
				if errors.Is(err, recorded.ErrNoTranscript) || errors.Is(err, trajectory.ErrNoCalls) {
					err = nil
				}
				if err == nil {
					recorded.Show(cmd.OutOrStdout(), r, t)
				}
				return err
			})
		},
	}
	addRowFlags(cmd, &o)
	return cmd
}

// each calls do for the rollouts that the arguments name. An error of one does not keep it
// from the others.
func (f *rolloutFlags) each(cmd *cobra.Command, args []string, do func(context.Context, *recorded.Rollout) error) error {
	list, done, err := f.find(cmd, args)
	if err != nil {
		return err
	}
	defer done()
	var bad []error
	for _, r := range list {
		if err := do(cmd.Context(), r); err != nil {
			bad = append(bad, err)
		}
		if cmd.Context().Err() != nil {
			break
		}
	}
	return errors.Join(bad...)
}

func rolloutLogsCommand(f *rolloutFlags) *cobra.Command {
	var stderr bool
	cmd := &cobra.Command{
		Use:   "logs ROLLOUT",
		Short: "Print the agent's stdout, without control characters; `turngate rollout cp` has the bytes, and `turngate tap` follows a rollout that runs",
		Args:  needArgs(1, 1, "one rollout"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.each(cmd, args, func(ctx context.Context, r *recorded.Rollout) error {
				data, err := r.Log(ctx, stderr)
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(data)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&stderr, "stderr", false, "stderr instead")
	return cmd
}

func rolloutCopyCommand(f *rolloutFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cp ROLLOUT [FILE...] DIR",
		Short: "Copy a rollout's files, all or those that match a name or a pattern, into a folder",
		Args:  needArgs(2, 1000, "a rollout, its files and a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			patterns, to := args[1:len(args)-1], args[len(args)-1]
			return f.each(cmd, args[:1], func(ctx context.Context, r *recorded.Rollout) error {
				names, err := r.Copy(ctx, to, patterns)
				for _, n := range names {
					fmt.Fprintln(cmd.OutOrStdout(), oneLine(n, len(n)+1))
				}
				return err
			})
		},
	}
	return cmd
}

func rolloutCancelCommand(f *rolloutFlags) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "cancel ROLLOUT...",
		Short: "Ask the workers to end rollouts, as their trainer; without --nats at " + defaultURL,
		Args:  needArgs(1, 1000, "rollouts of one trainer"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, side, ids, err := f.side(cmd, args)
			if err != nil {
				return err
			}
			defer b.Close()
			running := 0
			for _, id := range ids {
				s, err := b.Records.State(cmd.Context(), id)
				if err != nil && !errors.Is(err, broker.ErrNotFound) {
					return err
				}
				if err == nil && s.Status.Terminal() {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s has ended: %s\n", id, s.Status)
					continue
				}
				running++
			}
			if running == 0 {
				return nil
			}
			if err := side.Cancel(ids, nil, reason); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "asked the workers to end %s; `turngate rollout get` shows the result\n", plural(running, "rollout"))
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "an operator asked for it", "reason, for the result")
	return cmd
}
