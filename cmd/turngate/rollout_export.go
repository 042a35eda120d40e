package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/trajectory"
)

// addRowFlags adds the flags for making rows of calls.
func addRowFlags(cmd *cobra.Command, o *trajectory.Options) {
	fl := cmd.Flags()
	fl.Var(newChoice(&o.Merge, trajectory.MergeRealign, trajectory.MergeClean, trajectory.MergeFork), "merge", "how a call may join a row: clean (its prompt begins with the row's tokens), realign (or differs in the end of the last answer, within --max-lost), fork (never)")
	fl.Var(newAmount(&o.MaxLost, 0), "max-lost", "most sampled tokens of one answer that a joined row may leave out of training; above it a new row begins")
	fl.StringSliceVar(&o.Roles, "roles", []string{"agent", "subagent"}, "calls to train on: agent, subagent, aux")
	fl.BoolVar(&o.WithoutLogprobs, "without-logprobs", false, "train on answers without log-probs, too")
}

func rolloutExportCommand(f *rolloutFlags) *cobra.Command {
	var o trajectory.Options
	var format, to string
	var strict bool
	cmd := &cobra.Command{
		Use:   "export ROLLOUT...",
		Short: "Export rollouts as training rows, or in the formats of other tools",
		Long: "Export rollouts: as training rows (jsonl, parquet, arrow), as one document per line (atif, atif-1.7, openenv, verifiers), " +
			"or with --nats as the folder of a job in Harbor's layout (harbor), which --out names.\n\n" +
			"What a trainer should know is on stderr. Exit status: 1 if nothing could be exported, or with --strict if there is a finding of the level error.",
		Args: needArgs(1, 100_000, "at least one rollout or job"),
		PreRunE: func(*cobra.Command, []string) error {
			wrong := []error{o.Check()}
			if format == recorded.FormatHarbor && (to == "" || f.nats.url == "") {
				wrong = append(wrong, errors.New("--format: harbor needs --out, a folder, and --nats: the folders of jobs have this format already"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			list, done, err := f.find(cmd, args)
			if err != nil {
				return err
			}
			defer done()
			if format == recorded.FormatHarbor {
				return exportJob(cmd, to, list)
			}
			out := plain.JSON(cmd.OutOrStdout())
			if format == "parquet" || format == "arrow" {
				out = plain.Raw(cmd.OutOrStdout())
			}
			if to == "" && (format == "parquet" || format == "arrow") && isTerminal(os.Stdout) {
				return usage("--out: %s is binary: name a file", format)
			}
			if to != "" {
				file, err := os.Create(to)
				if err != nil {
					return fmt.Errorf("export: %w", err)
				}
				defer func() { err = errors.Join(err, file.Close()) }()
				out = file
			}
			sum, err := recorded.Export(cmd.Context(), out, format, list, o)
			if err != nil {
				return err
			}
			return printRows(cmd, format, &sum, strict)
		},
	}
	addRowFlags(cmd, &o)
	cmd.Flags().Var(newChoice(&format, append(recorded.Formats(), recorded.FormatHarbor)...), "format", "jsonl, parquet, arrow, atif, atif-1.7, openenv, verifiers or harbor")
	cmd.Flags().StringVar(&to, "out", "", "file to write (default: stdout); with harbor: folder of the new job")
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with status 1 if a finding has the level error")
	return cmd
}

// exportJob writes rollouts into the folder of a new job.
func exportJob(cmd *cobra.Command, dir string, list []*recorded.Rollout) error {
	sum, err := recorded.ExportJob(cmd.Context(), dir, list)
	if errors.Is(err, jobs.ErrNotEmpty) {
		return usage("--out: %w", err)
	}
	if err != nil {
		return err
	}
	return printRows(cmd, recorded.FormatHarbor, &sum, false)
}

// maxFindings is the largest number of printed findings.
const maxFindings = 50

// printRows prints the summary of an export.
func printRows(cmd *cobra.Command, format string, sum *recorded.Summary, strict bool) error {
	stderr := cmd.ErrOrStderr()
	for _, err := range sum.Skipped {
		fmt.Fprintln(stderr, safeText(err.Error()))
	}
	failed, shown := 0, 0
	for _, f := range sum.Findings {
		if f.Level == trajectory.LevelError {
			failed++
		}
		if f.Level == trajectory.LevelInfo {
			continue
		}
		if shown++; shown <= maxFindings {
			fmt.Fprintf(stderr, "%s: %s\n", oneLine(f.Rollout, 80), oneLine(f.String(), 300))
		}
	}
	if shown > maxFindings {
		fmt.Fprintf(stderr, "and %d more findings; `turngate rollout show` has them all\n", shown-maxFindings)
	}
	line := fmt.Sprintf("%s as %s", plural(sum.Rollouts, "rollout"), format)
	if sum.Rows > 0 {
		line += fmt.Sprintf(": %s of %d tokens", plural(sum.Rows, "row"), sum.Positions)
	}
	fmt.Fprintln(stderr, line)
	if sum.Counted {
		fmt.Fprintln(stderr, sum.Tokens)
	}
	if sum.Rollouts == 0 || strict && failed > 0 {
		return &exitError{code: exitFault}
	}
	return nil
}
