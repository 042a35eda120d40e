package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

type runFlags struct {
	nats         natsFlags
	answerer     modelFlags
	agent        []string
	model        []string
	backends     backendFlags // without --nats
	sandbox      string
	image        string
	box          sandboxFlags
	name         string
	group        int
	parallel     int
	output       string
	agents       string
	setup        []string
	snapshot     bool
	label        map[string]string
	agentTimeout time.Duration
	wait         time.Duration
	systemPrompt string
	verifier     string
	maxTurns     int
	maxCalls     int
	maxRepeats   int
	mode         string
	upstreams    string
	mcp          []string
	taskEnv      taskEnv
	job          jobFlags
	limits       limitFlags
	console      consoleFlags
	keepWorkdir  bool
	keep         time.Duration  // of each sandbox; 0: none is kept
	keepFailed   time.Duration  // of each sandbox with a failed verifier; 0: none is kept
	detach       bool           // the command ends when the job runs
	keeper       *keeper        // this process is one; nil: it is none
	recorded     *tasks.Task    // runs instead of task directories
	person       rollout.Person // of the worker in this process; nil: none
}

func runCommand(k *keeper) *cobra.Command {
	f := &runFlags{keeper: k}
	cmd := runCommandOf(f)
	addKeep(cmd.Flags(), &f.keepFailed, "keep-failed", fmt.Sprintf("without --nats: keep the sandbox of a rollout whose verifier failed or gave less than 1, for a time, and print the command that enters it; at most %d at once", reach.MaxKept))
	cmd.Flags().BoolVar(&f.detach, "detach", false, "end this command when the job runs: the job goes on without the terminal, its output is in DIR/"+outputName+", and turngate job attach DIR shows its progress")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (f.keepFailed > 0 || f.detach) && k == nil {
			return viaKeeper(cmd)
		}
		err := run(cmd, args)
		k.printKept(cmd.ErrOrStderr())
		return err
	}
	return cmd
}

func runCommandOf(f *runFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run PATH... [-- ARGV...] | run --resume DIR",
		Short: "Run tasks as rollouts and print their results",
		Long: "Run task directories (or folders of them) as rollouts, answer the agents' model calls, and print the results.\n\n" +
			"Without --nats a NATS server and a worker are started in this process. With it the tasks are only submitted and answered; workers elsewhere run them.\n\n" +
			"The URL on stderr opens a console with the rollouts in a browser of this host, until the command ends; --console off leaves it out.\n\n" +
			"The rollouts of one command are a job. Its folder has the results in the layout of Harbor's jobs. --resume DIR continues a job that was stopped or killed.\n\n" +
			"--detach prints the job's folder and ends when the job runs; `turngate job attach DIR` then shows the progress and ends with the exit status of the job.\n\n" +
			"--agent and --model can be repeated: each task runs with each agent and each model, and the report compares them.\n\n" +
			"The arguments after -- are the argv of --agent command; other agents get them in addition to their own.\n\n" +
			"Exit status: 0 if every rollout ended without a fault, 1 if one had a fault, 2 if the arguments are invalid or no task can run, 3 if --max-cost or --max-tokens-total ended the job before all rollouts ran.",
		PreRunE: f.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			paths, argv := atDash(cmd, args)
			return f.run(cmd, paths, argv)
		},
	}
	f.nats.trainer = &f.name
	f.nats.local = func(*cobra.Command, []string) bool { return f.job.resume != "" } // the job has its server
	f.nats.add(cmd, "")
	f.answerer.add(cmd)
	f.box.add(cmd)
	f.taskEnv.add(cmd.Flags())
	f.job.add(cmd)
	f.limits.add(cmd.Flags())
	f.console.add(cmd.Flags())
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.agent, "agent", "a", []string{"mini"}, "name of an agent, one of 'turngate agent ls' (repeatable: each task runs with each agent and each model)")
	fl.StringArrayVarP(&f.model, "model", "m", nil, "model of the agents: one of the server of --trainer upstream:URL (default: its only one), or else an upstream in the file of --upstreams; with --mode transparent_proxy or black_box an upstream of the worker (repeatable)")
	addSandbox(fl, &f.sandbox, &f.image, "", ", instead of the task's own")
	f.backends.add(fl, "without --nats: ")
	f.backends.prices.add(fl, "without --nats: ")
	fl.StringVar(&f.name, "name", "local", "name of the trainer")
	fl.VarP(newCount(&f.group, 1), "group", "n", "rollouts of each task")
	fl.VarP(newCount(&f.parallel, 2), "parallel", "j", "rollouts at once, without --nats")
	addOutput(fl, &f.output, "table", "json", "jsonl")
	fl.StringVar(&f.agents, "agents", cacheDir(), "folder of installed agents")
	fl.StringArrayVar(&f.setup, "setup", nil, "shell command to run in the sandbox before the agent, after the task's own (repeatable)")
	fl.BoolVar(&f.snapshot, "snapshot", false, "run the setup once for the rollouts of a group on one worker, where the sandbox can be copied (docker)")
	fl.BoolVar(&f.keepWorkdir, "keep-workdir", false, "keep the agent's working directory (up to 64 MiB), so that turngate job regrade can run the verifier again; tasks with a separate verifier or several steps are left as they are")
	fl.StringToStringVar(&f.label, "label", nil, "label of the rollouts, as key=value (repeatable)")
	fl.DurationVar(&f.agentTimeout, "agent-timeout", 0, "time limit of the agent (default: the task's, else 15m)")
	fl.DurationVar(&f.wait, "wait", 0, "longest wait of a model call for an answer (default: the task's, else 30m), and of the command for its upstream (default: none)")
	fl.StringVar(&f.systemPrompt, "system-prompt", "", "system prompt for agents that take one")
	fl.Var(newChoice(&f.verifier, "", "separate"), "verifier", "separate: verify in a second sandbox, which gets the artifacts that the task names (default: the task's mode)")
	fl.IntVar(&f.maxTurns, "max-turns", 0, "largest number of turns, for agents that can count them")
	fl.IntVar(&f.maxCalls, "max-calls", 0, "largest number of model calls of one rollout (default: the task's, else 1000)")
	fl.IntVar(&f.maxRepeats, "max-repeats", 0, "largest number of model calls in a row with the same prompt, or with the same answer (default: the task's, else 20)")
	fl.StringArrayVar(&f.mcp, "mcp", nil, "MCP server that the agent starts in its sandbox, as NAME=COMMAND, where spaces separate arguments (repeatable)")
	fl.Var(newChoice(&f.mode, string(schema.ModeGate), string(schema.ModeProxy), string(schema.ModeBlack)), "mode", "source of the answers: interception_gate (the trainer), transparent_proxy (an upstream that the worker calls) or black_box (one that the agent calls itself)")
	fl.StringVar(&f.upstreams, "upstreams", "", "file of upstreams, which --model names; without --nats it is the worker's configuration, too")
	return cmd
}

// request returns the task's request, changed by the flags.
func (f *runFlags) request(t *tasks.Task, v jobs.Variant, argv []string) (schema.Request, error) {
	r := t.Request
	r.V, r.Trainer, r.Mode = schema.Version, f.name, schema.Mode(f.mode)
	if r.Mode != schema.ModeGate {
		r.Model.Upstream = v.Model
	}
	r.Agent.Name, r.Agent.Args, r.Agent.SystemPrompt, r.Agent.MaxTurns = v.Agent, argv, f.systemPrompt, f.maxTurns
	for _, m := range f.mcp {
		name, command, ok := strings.Cut(m, "=")
		if !ok {
			return r, usage("--mcp: %q is not valid: want NAME=COMMAND", m)
		}
		r.Agent.MCP = append(r.Agent.MCP, schema.MCPServer{Name: name, Command: strings.Fields(command)})
	}
	r.Sandbox.Backend = f.sandbox
	if f.image != "" {
		r.Sandbox.Image, r.Sandbox.Build = f.image, nil
	}
	if r.Sandbox.Build != nil && !slices.Contains(backends.Builders(), f.sandbox) && !f.backends.local.images(f.sandbox) && (f.sandbox != local.Kind().Name || f.nats.url == "") { // the worker of a server may have its image
		return r, usage("task %s has an environment/Dockerfile, which the %s sandbox cannot build; use --sandbox %s, or --sandbox local with --local-images", t.Dir, f.sandbox, orList(backends.Builders()))
	}
	if r.Sandbox.Build == nil && r.Sandbox.Image == "" && hasImages(f.sandbox) {
		return r, usage("task %s has no image, and the %s sandbox needs one: name it with --image, such as --image debian:bookworm-slim, or use --sandbox local", t.Dir, f.sandbox)
	}
	if spec, err := agents.Find(agents.All(), v.Agent); err == nil && spec.Solution {
		r.Agent.Env = t.Solution
	}
	if err := f.box.apply(&r); err != nil {
		return r, err
	}
	for _, s := range f.setup {
		r.Setup = append(slices.Clip(r.Setup), schema.Command{Run: s})
	}
	r.Snapshot = (r.Snapshot || f.snapshot) && f.group > 1 && f.keepFailed == 0 // the snapshots of a worker end before the sandboxes that it keeps
	r.Limits.AgentMS = cmp.Or(f.agentTimeout.Milliseconds(), r.Limits.AgentMS)
	r.Gate.WaitMS = cmp.Or(f.wait.Milliseconds(), r.Gate.WaitMS)
	r.Gate.MaxCalls = cmp.Or(f.maxCalls, r.Gate.MaxCalls)
	r.Gate.MaxRepeats = cmp.Or(f.maxRepeats, r.Gate.MaxRepeats)
	r.Gate.Stream = f.answerer.stream
	r.Labels = f.label
	if f.keepWorkdir && r.Verify != nil && r.Verify.Separate == nil && len(r.Steps) == 0 {
		r.Artifacts = append(slices.Clip(r.Artifacts), schema.ArtifactRule{Source: ".", Destination: schema.ArtifactWorkdir})
	}
	return r, nil
}
