package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trainer/replay"
	"github.com/turngate/turngate/worker"
)

type runFlags struct {
	nats     natsFlags
	model    modelFlags
	agent    string
	sandbox  string
	image    string
	network  string
	noLimits bool
	name     string
	group    int
	parallel int
	output   string
	cache    string
	setup    []string
	labels   map[string]string
	timeout  time.Duration
	system   string
	maxTurns int
	maxCalls int
	mode     string
	engine   string
	engines  string
	mcp      []string
}

func runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run PATH... [-- ARGV...]",
		Short: "Run tasks as rollouts and print their results",
		Long: "Run task directories (or folders of them) as rollouts, answer the agents' model calls, and print the results.\n\n" +
			"Without --nats a NATS server and a worker are started in this process. With it the tasks are only submitted and answered; workers elsewhere run them.\n\n" +
			"What follows -- is the argv of --agent command, or is added to another agent's.\n\n" +
			"Exit status: 0 when every rollout ended without a fault, 1 when one had a fault, 2 when what was asked for makes no sense.",
		RunE: func(cmd *cobra.Command, args []string) error {
			paths, argv := args, []string(nil)
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				paths, argv = args[:at], args[at:]
			}
			return f.run(cmd, paths, argv)
		},
	}
	f.nats.add(cmd, "")
	f.model.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.agent, "agent", "mini", "agent to run, see `turngate agent ls`")
	fl.StringVar(&f.sandbox, "sandbox", "local", "sandbox backend: local or docker")
	fl.StringVar(&f.image, "image", "", "image for the docker sandbox, instead of the task's own")
	fl.StringVar(&f.network, "network", "", "network of the sandbox: none or open (default: as the task says, else none)")
	fl.BoolVar(&f.noLimits, "no-limits", false, "drop the task's cpu, memory and disk limits")
	fl.StringVar(&f.name, "name", "local", "name of the trainer")
	fl.IntVarP(&f.group, "group", "n", 1, "rollouts of each task")
	fl.IntVarP(&f.parallel, "parallel", "j", 2, "rollouts at once, without --nats")
	fl.StringVarP(&f.output, "output", "o", "table", "table, json or jsonl")
	fl.StringVar(&f.cache, "agents", cacheDir(), "folder of installed agents")
	fl.StringArrayVar(&f.setup, "setup", nil, "shell command to run in the sandbox before the agent, after the task's own (repeatable)")
	fl.StringToStringVar(&f.labels, "label", nil, "label of the rollouts, as key=value (repeatable)")
	fl.DurationVar(&f.timeout, "agent-timeout", 0, "how long the agent may work (default: as the task says, else 15m)")
	fl.StringVar(&f.system, "system-prompt", "", "system prompt for agents that take one")
	fl.IntVar(&f.maxTurns, "max-turns", 0, "most turns, for agents that can count them")
	fl.IntVar(&f.maxCalls, "max-calls", 0, "most model calls of one rollout (default: as the task says, else 1000)")
	fl.StringArrayVar(&f.mcp, "mcp", nil, "server of tools for the agent to start in its sandbox, as NAME=COMMAND with arguments behind spaces (repeatable)")
	fl.StringVar(&f.mode, "mode", string(schema.ModeGate), "who answers: interception_gate (the trainer), transparent_proxy (an engine that the worker asks) or black_box (one that the agent asks itself)")
	fl.StringVar(&f.engine, "upstream", "", "name of that engine in the worker's configuration")
	fl.StringVar(&f.engines, "upstreams", "", "that configuration, without --nats: a file of engines")
	return cmd
}

// job is one task as it is submitted, with who answers for it.
type job struct {
	task   *tasks.Task
	answer trainer.Answerer
}

func (f *runFlags) run(cmd *cobra.Command, paths, argv []string) error {
	ctx := cmd.Context()
	if !slices.Contains([]string{"table", "json", "jsonl"}, f.output) {
		return usage("-o: %q is not valid: want table, json or jsonl", f.output)
	}
	if f.group < 1 || f.parallel < 1 {
		return usage("-n and -j: want 1 or more")
	}
	jobs, err := f.load(cmd, paths)
	if err != nil {
		return err
	}
	log := logger(cmd)
	pg := newProgress(cmd.ErrOrStderr(), os.Stderr)
	b, closeAll, err := f.connect(ctx, pg, log)
	if err != nil {
		return err
	}
	defer closeAll()
	t, err := trainer.New(trainer.Config{Broker: b, Name: f.name, Log: log})
	if err != nil {
		return err
	}
	defer t.Close()
	requests, answers, err := f.submit(ctx, t, jobs, argv)
	if err != nil {
		return err
	}
	pg.begin(requests)
	results, err := f.collect(ctx, t, answers, pg)
	pg.end()
	if err != nil {
		return err
	}
	slices.SortFunc(results, func(a, b schema.Result) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
	})
	if err := printResults(cmd.OutOrStdout(), f.output, results); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r schema.Result) bool { return r.Fault != nil }) {
		return &exitError{code: exitFault}
	}
	return nil
}

// load reads the tasks and finds who answers for each.
func (f *runFlags) load(cmd *cobra.Command, paths []string) ([]job, error) {
	if len(paths) == 0 {
		return nil, usage("run: say which task directories to run")
	}
	spec, err := agents.Find(agents.All(), f.agent)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	shared, err := f.model.open()
	if err != nil {
		return nil, err
	}
	dirs, err := taskDirs(paths)
	if err != nil {
		return nil, err
	}
	var out []job
	for _, dir := range dirs {
		t, err := tasks.Load(dir, tasks.Options{Lookup: os.LookupEnv})
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		for _, w := range t.Warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", dir, w)
		}
		j := job{task: t, answer: shared}
		if j.answer == nil && spec.Dialect != "" && schema.Mode(f.mode) == schema.ModeGate {
			if t.Replay == "" {
				return nil, usage("%s has no replay.yaml: say who answers the model calls with --trainer replay:FILE or --trainer upstream:URL", dir)
			}
			s, err := replay.Load(t.Replay)
			if err != nil {
				return nil, &exitError{exitUsage, err}
			}
			j.answer = trainer.Whole(s.Answer)
		}
		out = append(out, j)
	}
	return out, nil
}

// taskDirs takes a path as a task if it looks like one, else as a folder of
// tasks.
func taskDirs(paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, usage("%w", err)
		}
		if !info.IsDir() {
			return nil, usage("%s is not a task directory", p)
		}
		inside, err := filepath.Glob(filepath.Join(p, "*", "instruction.md"))
		if err != nil {
			return nil, usage("%w", err)
		}
		if _, err := os.Stat(filepath.Join(p, "instruction.md")); err == nil || len(inside) == 0 {
			out = append(out, p)
			continue
		}
		for _, i := range inside {
			out = append(out, filepath.Dir(i))
		}
	}
	return out, nil
}

// connect gives a broker for the trainer: of a server elsewhere, or of one that
// is started here together with a worker.
func (f *runFlags) connect(ctx context.Context, pg *progress, log zerolog.Logger) (_ *broker.Broker, _ func(), err error) {
	if f.nats.url != "" {
		b, err := f.nats.dial(ctx, "trainer", f.name, log)
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	}
	var closers []func()
	closeAll := func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	state, err := os.MkdirTemp("", "turngate-run-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a state directory: %w", err)
	}
	closers = append(closers, func() { os.RemoveAll(state) })
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: state, Trainers: []string{f.name}, Relaxed: true, Log: log})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, srv.Shutdown)
	dial := func(creds, role, name string) (*broker.Broker, error) {
		nf := natsFlags{srv.URL(), creds}
		b, err := nf.dial(ctx, role, name, log)
		if err == nil {
			closers = append(closers, b.Close)
		}
		return b, err
	}
	wid := "run-" + randomHex(4)
	wb, err := dial(srv.WorkerCreds(), "worker", wid)
	if err != nil {
		return nil, nil, err
	}
	if err := wb.Setup(ctx, broker.StreamsConfig{}); err != nil {
		return nil, nil, err
	}
	wf := workerFlags{
		slots: f.parallel, sandboxes: f.sandbox, networks: schema.NetworkOpen, state: state, agents: f.cache, grace: time.Millisecond, upstreams: f.engines, memory: 1024,
	}
	timing := broker.DefaultTiming()
	timing.NoCapable = 0 // this worker is all there is
	w, side, err := wf.start(ctx, wb, wid, timing, nil, log)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, side.Close)
	tb, err := dial(srv.TrainerCreds(f.name), "trainer", f.name)
	if err != nil {
		return nil, nil, err
	}
	ob, err := dial(srv.OpsCreds(), "ops", "ops")
	if err != nil {
		return nil, nil, err
	}
	tap, err := ob.OpenTap(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, inBackground(ctx, w, tap, pg, log))
	return tb, closeAll, nil
}

// submit makes the requests of every task and puts them on the queue.
func (f *runFlags) submit(ctx context.Context, t *trainer.Trainer, jobs []job, argv []string) ([]schema.Request, map[schema.ID]trainer.Answerer, error) {
	var requests []schema.Request
	answers := map[schema.ID]trainer.Answerer{}
	for _, j := range jobs {
		r, err := f.request(j.task, argv)
		if err != nil {
			return nil, nil, err
		}
		if r.Task.Bundle, err = t.PutBundle(ctx, j.task.Bundle); err != nil {
			return nil, nil, err
		}
		r.Group = ulid.Make().String()
		for i := range f.group {
			r.Index = i
			if r.ID, err = schema.NewID(f.name, fmt.Sprintf("%s-%d", r.Group[10:], i)); err != nil {
				return nil, nil, usage("--name: %w", err)
			}
			if err := r.Validate(); err != nil {
				return nil, nil, usage("task %s: %w", j.task.Dir, err)
			}
			requests = append(requests, r)
			answers[r.ID] = j.answer
		}
	}
	return requests, answers, t.Submit(ctx, requests)
}

// inBackground runs a worker, and shows what it does, until stop.
func inBackground(ctx context.Context, w *worker.Worker, tap *broker.Tap, pg *progress, log zerolog.Logger) (stop func()) {
	bg, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(bg); err != nil {
			log.Error().Err(err).Msg("the worker failed")
		}
	})
	running.Go(func() {
		if err := tap.Run(bg, pg.event); err != nil {
			log.Debug().Err(err).Msg("progress is not shown")
		}
	})
	return func() { cancel(); running.Wait() }
}

// request is the task as these flags want it.
func (f *runFlags) request(t *tasks.Task, argv []string) (schema.Request, error) {
	r := t.Request
	r.V, r.Trainer, r.Mode, r.Model.Upstream = schema.Version, f.name, schema.Mode(f.mode), f.engine
	r.Agent.Name, r.Agent.Args, r.Agent.SystemPrompt, r.Agent.MaxTurns = f.agent, argv, f.system, f.maxTurns
	for _, m := range f.mcp {
		name, command, ok := strings.Cut(m, "=")
		if !ok {
			return r, usage("--mcp: %q is not valid: want NAME=COMMAND", m)
		}
		r.Agent.MCP = append(r.Agent.MCP, schema.MCPServer{Name: name, Command: strings.Fields(command)})
	}
	r.Sandbox.Backend = f.sandbox
	r.Sandbox.Build = t.Build && f.sandbox != "local"
	if f.image != "" {
		r.Sandbox.Image, r.Sandbox.Build = f.image, false
	}
	if f.sandbox == "local" && t.Build {
		return r, usage("task %s has an environment/Dockerfile, which the local sandbox cannot build; use --sandbox docker", t.Dir)
	}
	r.Sandbox.Network = cmp.Or(f.network, r.Sandbox.Network)
	if f.noLimits {
		r.Sandbox.CPUs, r.Sandbox.MemoryBytes, r.Sandbox.DiskBytes = 0, 0, 0
	}
	for _, s := range f.setup {
		r.Setup = append(slices.Clip(r.Setup), schema.Command{Run: s})
	}
	r.Limits.AgentMS = cmp.Or(f.timeout.Milliseconds(), r.Limits.AgentMS)
	r.Gate.MaxCalls = cmp.Or(f.maxCalls, r.Gate.MaxCalls)
	r.Gate.Stream = f.model.stream
	r.Labels = f.labels
	return r, nil
}

// collect answers calls until every result is there.
func (f *runFlags) collect(ctx context.Context, t *trainer.Trainer, answers map[schema.ID]trainer.Answerer, pg *progress) ([]schema.Result, error) {
	serving, stop := context.WithCancel(ctx)
	var bg sync.WaitGroup
	bg.Go(func() {
		_ = t.ServeStream(serving, func(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
			key, err := schema.ParseKey(c.Key)
			if err != nil {
				return nil, err
			}
			answer := answers[key.Rollout]
			if answer == nil {
				return nil, errors.New("this process did not submit that rollout")
			}
			reply, err := answer(ctx, c, emit)
			pg.call(key.Rollout, reply)
			return reply, err
		})
	})
	var results []schema.Result
	err := t.Results(ctx, func(r schema.Result) {
		results = append(results, r)
		pg.result(&r)
	})
	stop()
	bg.Wait()
	if err != nil && ctx.Err() != nil && f.nats.url != "" {
		var ids []schema.ID
		for id := range answers {
			ids = append(ids, id)
		}
		if cerr := t.Cancel(ids, "interrupted"); cerr != nil {
			return results, errors.Join(err, cerr)
		}
	}
	return results, err
}
