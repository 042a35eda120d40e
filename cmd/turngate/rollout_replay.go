package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/playback"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// replayFlags select the settings of a rollout that runs again.
type replayFlags struct {
	task, agent, agents, output string
	trust                       trustFlags
}

func rolloutReplayCommand(f *rolloutFlags) *cobra.Command {
	var p replayFlags
	cmd := &cobra.Command{
		Use:   "replay ROLLOUT [-- FLAGS OF RUN...]",
		Short: "Run a recorded rollout again with its recorded answers, and report where the agent diverges",
		Long: "Run a recorded rollout again, in this process. The recording answers the model calls and the calls of the trainer's tools. " +
			"The report names the first call that differs, with the difference.\n\n" +
			"The task, the agent and all settings are those of the rollout's job, or with --nats of its stored request; --task and --agent replace them, and are needed for a transcript alone. " +
			"Flags of `turngate run` follow --. A trainer that verified the rollout is not asked again.\n\n" +
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
			return p.replay(cmd, list[0], more)
		},
	}
	cmd.Flags().StringVar(&p.task, "task", "", "folder of the task (default: that of the rollout)")
	cmd.Flags().StringVar(&p.agent, "agent", "", "agent to run (default: that of the rollout)")
	cmd.Flags().StringVar(&p.agents, "agents", cacheDir(), "folder of installed agents")
	p.trust.add(cmd.Flags(), "")
	addOutput(cmd.Flags(), &p.output, "text", "json")
	return cmd
}

// replay runs the rollout again. More are flags of `turngate run`.
func (p *replayFlags) replay(cmd *cobra.Command, r *recorded.Rollout, more []string) error {
	data, err := r.Transcript(cmd.Context())
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
	again := &runFlags{}
	var run, argv []string
	if p.task == "" && r.OfSystem() {
		run, argv, err = p.stored(cmd, r, again)
	} else {
		run, argv, err = p.ofJob(cmd, r)
	}
	if err != nil {
		return err
	}
	run = append(run, "--trainer", "transcript:"+transcript, "--agents", p.agents, "--out", filepath.Join(dir, "job"), "--parallel", "1", "--group", "1")
	run = append(run, more...)
	if len(argv) > 0 {
		run = append(append(run, "--"), argv...)
	}
	c := runCommandOf(again)
	c.SetArgs(run)
	c.SetOut(cmd.ErrOrStderr()) // the report alone is data
	c.SetErr(cmd.ErrOrStderr())
	c.SilenceErrors, c.SilenceUsage = true, true
	c.Flags().Bool("verbose", false, "")
	ran := c.ExecuteContext(cmd.Context())
	if again.answerer.recording == nil {
		return ran
	}
	return reportReplay(cmd, p.output, again.answerer.recording.Reports(), ran)
}

// stored returns the flags and the argv of `turngate run` for a request that the
// system keeps, and sets the task that runs.
func (p *replayFlags) stored(cmd *cobra.Command, r *recorded.Rollout, again *runFlags) (args, argv []string, err error) {
	q, bundle, err := r.Request(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	q.Shard, q.Process, q.AttemptFloor, q.DelayMS = "", "", 0, 0
	drop := func(v *schema.Verify) *schema.Verify {
		if v != nil && v.By == schema.VerifyByTrainer {
			fmt.Fprintln(cmd.ErrOrStderr(), "the trainer verified this rollout: it runs again without verification")
			return nil
		}
		return v
	}
	q.Verify = drop(q.Verify)
	for i := range q.Steps {
		q.Steps[i].Verify = drop(q.Steps[i].Verify)
	}
	again.recorded = &tasks.Task{Dir: q.Task.Name, Request: *q, Bundle: bundle, Solution: q.Agent.Env}
	args = []string{
		"--agent", cmp.Or(p.agent, q.Agent.Name), "--sandbox", q.Sandbox.Backend, "--system-prompt=" + q.Agent.SystemPrompt,
		"--max-turns", strconv.Itoa(q.Agent.MaxTurns), "--stream=" + q.Gate.Stream,
	}
	return args, q.Agent.Args, nil
}

// ofJob returns the arguments and the argv of `turngate run` with which a rollout
// was run.
func (p *replayFlags) ofJob(cmd *cobra.Command, r *recorded.Rollout) (args, argv []string, err error) {
	if r.Plan != nil {
		flags := flagsOfJob(r.Plan)
		if err := p.trust.check(cmd, r.Job, r.Plan, flags); err != nil {
			return nil, nil, err
		}
		args, argv = asArgs(flags), r.Plan.Argv
	}
	task, agent := p.task, p.agent
	if task == "" && r.Trial != nil {
		task = r.Trial.Dir
	}
	if agent == "" && r.Trial != nil {
		agent = r.Trial.Agent
	}
	if agent == "" && r.Result != nil {
		agent = r.Result.Agent
	}
	if task == "" || agent == "" {
		return nil, nil, usage("--task, --agent: the job of %s is not known: name its task and its agent", r.Name())
	}
	return append([]string{task, "--agent", agent}, args...), argv, nil
}

// flagsOfJob returns the flags of a job, except the flags of its tasks, its agents and the
// answers to their calls, and except skip.
func flagsOfJob(p *jobs.Plan, skip ...string) map[string][]string {
	skip = append(skip, "trainer", "group", "agent", "filter", "exclude", "limit", "seed", "model", "max-tokens", "plain-upstream", "keep-reasoning", "mode", "upstreams")
	flags := maps.Clone(p.Flags)
	maps.DeleteFunc(flags, func(name string, _ []string) bool { return mayDiffer(name) || slices.Contains(skip, name) })
	return flags
}

// asArgs returns flags as arguments.
func asArgs(flags map[string][]string) (args []string) {
	for name, values := range flags {
		for _, v := range values {
			args = append(args, "--"+name+"="+v)
		}
	}
	slices.Sort(args)
	return args
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
		printReport(out, &p)
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

func printReport(out io.Writer, p *playback.Report) {
	switch d := p.Diverged; {
	case d == nil:
	case d.Tool != "":
		fmt.Fprintf(out, "tool call %d, of %s, diverges from recorded tool call %d; %d more calls diverge\n%s\n", d.Call, oneLine(d.Tool, 80), d.Recorded, p.Others, safeText(d.Diff))
	default:
		fmt.Fprintf(out, "call %d diverges from recorded call %d at message %d; %d more calls diverge\n%s\n", d.Call, d.Recorded, d.Message, p.Others, safeText(d.Diff))
	}
	if len(p.Missing) > 0 {
		fmt.Fprintf(out, "recorded calls that the agent did not make: %s\n", strings.Trim(fmt.Sprint(p.Missing), "[]"))
	}
	if len(p.MissingTools) > 0 {
		fmt.Fprintf(out, "recorded tool calls that the agent did not make: %s\n", strings.Trim(fmt.Sprint(p.MissingTools), "[]"))
	}
	if !p.Same() {
		return
	}
	line := "the agent made the same " + plural(p.Recorded, "call")
	if p.RecordedTools > 0 {
		line += " and the same " + plural(p.RecordedTools, "call") + " of tools"
	}
	fmt.Fprintln(out, line)
}
