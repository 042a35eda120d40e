package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/rollouts"
	"github.com/turngate/turngate/trajectory/playback"
)

func rolloutReplayCommand(f *rolloutFlags) *cobra.Command {
	var task, agent, agents, output string
	cmd := &cobra.Command{
		Use:   "replay ROLLOUT [-- FLAGS OF RUN...]",
		Short: "Run a recorded rollout again with its recorded answers, and report where the agent diverges",
		Long: "Run a recorded rollout again. The recording answers the model calls. The report names the first call whose messages differ, with their difference.\n\n" +
			"The task, the agent and all settings are those of the rollout's job; --task and --agent replace them, and are needed for a transcript alone. " +
			"Flags of `turngate run` follow --.\n\n" +
			"Exit status: 0 when the agent made the same calls, 1 when it diverged.",
		RunE: func(cmd *cobra.Command, args []string) error {
			names, more := atDash(cmd, args)
			if len(names) != 1 {
				return usage("%d rollouts are not valid: want one", len(names))
			}
			list, done, err := f.find(cmd, names)
			if err != nil {
				return err
			}
			defer done()
			if len(list) != 1 {
				return usage("%s has %s: want one", names[0], plural(len(list), "rollout"))
			}
			data, err := list[0].Transcript(cmd.Context())
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "turngate-replay-")
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			defer os.RemoveAll(dir)
			transcript := filepath.Join(dir, "transcript.jsonl.zst")
			if err := os.WriteFile(transcript, data, 0o600); err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			run, err := runArgs(list[0], task, agent)
			if err != nil {
				return err
			}
			run = append(run, "--trainer", "transcript:"+transcript, "--agents", agents, "--out", filepath.Join(dir, "job"), "--parallel", "1", "--group", "1")
			again := &runFlags{}
			c := runCommandOf(again)
			run = append(run, more...)
			if p := list[0].Plan; p != nil && len(p.Argv) > 0 {
				run = append(append(run, "--"), p.Argv...)
			}
			c.SetArgs(run)
			c.SetOut(cmd.ErrOrStderr()) // the report alone is data
			c.SetErr(cmd.ErrOrStderr())
			c.SilenceErrors, c.SilenceUsage = true, true
			c.Flags().Bool("verbose", false, "")
			ran := c.ExecuteContext(cmd.Context())
			if again.model.recording == nil {
				return ran
			}
			return reportReplay(cmd, output, again.model.recording.Reports(), ran)
		},
	}
	cmd.Flags().StringVar(&task, "task", "", "folder of the task (default: that of the rollout's job)")
	cmd.Flags().StringVar(&agent, "agent", "", "agent to run (default: that of the rollout)")
	cmd.Flags().StringVar(&agents, "agents", cacheDir(), "folder of installed agents")
	addOutput(cmd.Flags(), &output, "text", "json")
	return cmd
}

// runArgs returns the arguments of `turngate run` with which a rollout was run.
func runArgs(r *rollouts.Rollout, task, agent string) ([]string, error) {
	var args []string
	if r.Plan != nil {
		for name, values := range r.Plan.Flags {
			if mayDiffer(name) || slices.Contains([]string{"trainer", "group", "agent", "filter", "exclude", "limit", "seed", "model", "max-tokens", "plain-upstream"}, name) {
				continue
			}
			for _, v := range values {
				args = append(args, "--"+name+"="+v)
			}
		}
	}
	if task == "" && r.Trial != nil {
		task = r.Trial.Dir
	}
	if agent == "" && r.Plan != nil {
		agent = r.Plan.Agent
	}
	if agent == "" && r.Result != nil {
		agent = r.Result.Agent
	}
	if task == "" || agent == "" {
		return nil, usage("--task, --agent: the job of %s is not known: name its task and its agent", r.Name())
	}
	slices.Sort(args)
	return append([]string{task, "--agent", agent}, args...), nil
}

// reportReplay prints how a rollout compares with its recording.
func reportReplay(cmd *cobra.Command, output string, reports []playback.Report, ran error) error {
	out := cmd.OutOrStdout()
	if output == "json" {
		if err := printJSON(out, reports); err != nil {
			return err
		}
	}
	same := len(reports) > 0
	for _, p := range reports {
		same = same && p.Same()
		if output != "text" {
			continue
		}
		if d := p.Diverged; d != nil {
			fmt.Fprintf(out, "call %d diverges from recorded call %d at message %d; %d more calls diverge\n%s\n", d.Call, d.Recorded, d.Message, p.Others, safeText(d.Diff))
		}
		if len(p.Missing) > 0 {
			fmt.Fprintf(out, "recorded calls that the agent did not make: %s\n", strings.Trim(fmt.Sprint(p.Missing), "[]"))
		}
		if p.Same() {
			fmt.Fprintf(out, "the agent made the same %d calls\n", p.Recorded)
		}
	}
	if ran != nil && !same || len(reports) == 0 {
		if ran != nil {
			return ran
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "the agent made no model call")
	}
	if !same {
		return &exitError{code: exitFault}
	}
	return nil
}
