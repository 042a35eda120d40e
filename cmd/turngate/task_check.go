package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/taskcheck"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

type taskCheckFlags struct {
	run  runFlags
	out  string
	pass float64
}

func taskCheckCommand() *cobra.Command {
	f := &taskCheckFlags{}
	cmd := &cobra.Command{
		Use:   "check DIR...",
		Short: "Try tasks: do they load and build, is nothing rewarded for no work, does their own solution get the reward?",
		Long: "Check task directories (or folders of them): each is loaded, its environment is made, the agent nop runs in it, and, when it has a\n" +
			"solution, the agent oracle. For each task: ok, or everything that is wrong; then how many tasks have which cause.\n\n" +
			"With --out DIR what is finished is kept there, and the same command goes on where it was stopped. A task that was changed since is checked again.\n\n" +
			"Exit status: 0 when every task is ok, 1 when one is not, 2 when the arguments are invalid.",
		Args: cobra.MinimumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			var wrong []error
			if f.pass <= 0 {
				wrong = append(wrong, fmt.Errorf("--pass: %v is not valid: want a reward above 0", f.pass))
			}
			return usageOf(append(wrong, f.run.box.check(), f.run.taskEnv.check(), f.run.backends.check(), flagOf("name", schema.CheckTrainer(f.run.name)), checkPaths(args))...)
		},
		RunE: func(cmd *cobra.Command, paths []string) error { return f.check(cmd, paths) },
	}
	f.run.nats.trainer = &f.run.name
	f.run.nats.add(cmd, "")
	fl := cmd.Flags()
	f.run.taskEnv.add(fl)
	addSandbox(fl, &f.run.sandbox, &f.run.image, "", ", instead of the tasks' own")
	f.run.backends.add(fl, "without --nats: ")
	fl.StringVar(&f.run.box.network, "network", "", "network of the sandbox: none, open or allowlist (default: the task's, else none)")
	fl.StringVar(&f.run.name, "name", "local", "name of the trainer")
	fl.StringVar(&f.run.agents, "agents", cacheDir(), "folder of installed agents")
	fl.VarP(newCount(&f.run.parallel, 2), "parallel", "j", "tasks at once")
	addOutput(fl, &f.run.output, "table", "json", "jsonl")
	fl.StringVar(&f.out, "out", "", "folder of finished reports; the same command continues there")
	fl.Float64Var(&f.pass, "pass", 1, "least reward of a solved task")
	return cmd
}

func (f *taskCheckFlags) check(cmd *cobra.Command, paths []string) error {
	ctx := cmd.Context()
	dirs, err := tasks.Find(paths)
	if err != nil {
		return usageOf(err)
	}
	f.run.chooseSandbox(cmd, paths)
	c := taskcheck.Config{Dirs: dirs, Parallel: f.run.parallel, Pass: f.pass, Request: f.request}
	given, err := f.run.taskEnv.values()
	if err != nil {
		return usageOf(err)
	}
	c.Load = func(dir string) (*tasks.Task, error) { return tasks.Load(dir, tasks.Options{Env: given}) }
	if f.out != "" {
		settings := fmt.Sprintf("%s %s %s %v %s", f.run.sandbox, f.run.image, f.run.box.network, f.pass, f.run.nats.url)
		if c.State, err = taskcheck.Open(f.out, settings); err != nil {
			return usage("--out: %w", err)
		}
		defer c.State.Close()
	}
	serving, single, err := openSingles(ctx, &f.run, nil, logger(cmd))
	if err != nil {
		return err
	}
	defer single.close()
	c.Run = single.run
	done := 0
	c.Done = func(r taskcheck.Report) {
		done++
		fmt.Fprintf(cmd.ErrOrStderr(), "[%d/%d] %s\n", done, len(dirs), checkLine(r))
		if f.run.output == "jsonl" {
			_ = json.NewEncoder(plain.JSON(cmd.OutOrStdout())).Encode(r) // a closed pipe ends the process
		}
	}
	reports, err := taskcheck.Run(serving, c)
	if perr := f.print(cmd.OutOrStdout(), reports); perr != nil || err != nil {
		return errors.Join(err, perr)
	}
	if slices.ContainsFunc(reports, func(r taskcheck.Report) bool { return !r.OK }) {
		return &exitError{code: exitFault}
	}
	return nil
}

// request returns the request of a task for one of the check's agents.
func (f *taskCheckFlags) request(t *tasks.Task, agent string) (schema.Request, error) {
	own := f.run
	q, err := own.request(t, jobs.Variant{Agent: agent}, nil)
	if err != nil {
		return q, err
	}
	q.Group = jobs.NewGroup()
	if q.ID, err = jobs.RolloutID(own.name, q.Group, 0); err != nil {
		return q, err
	}
	return q, schema.Validate(&q)
}

func checkLine(r taskcheck.Report) string {
	name := r.Task
	if name == "" {
		name = r.Dir
	}
	state := "ok"
	if !r.OK {
		var list []string
		for _, d := range r.Defects {
			list = append(list, fmt.Sprintf("%s: %s", d.Cause, d.Message))
		}
		state = strings.Join(list, "; ")
	}
	if r.Recalled {
		state += " (kept from before)"
	}
	return oneLine(fmt.Sprintf("%s: %s", name, state), 300)
}

func (f *taskCheckFlags) print(w io.Writer, reports []taskcheck.Report) error {
	switch f.run.output {
	case "jsonl":
		return nil // the reports were written one by one
	case "json":
		if reports == nil {
			reports = []taskcheck.Report{}
		}
		return printJSON(w, reports)
	}
	t := newTable(w, "TASK", "STATE", "NOP", "ORACLE", "SECONDS", "DEFECT")
	t.cut, t.names = []string{"DEFECT"}, []string{"TASK"}
	ok := 0
	for _, r := range reports {
		state, defect := "ok", "-"
		if r.OK {
			ok++
		} else {
			var causes []string
			for _, d := range r.Defects {
				if !slices.Contains(causes, string(d.Cause)) {
					causes = append(causes, string(d.Cause))
				}
			}
			state, defect = strings.Join(causes, ", "), oneLine(r.Defects[0].Message, 120)
		}
		t.row(shortName(oneLine(r.Dir, len(r.Dir)+1), 60), state, outcome(r.Nop), outcome(r.Oracle), fmt.Sprintf("%.1f", r.Seconds), defect)
	}
	if err := t.flush(); err != nil {
		return err
	}
	for _, r := range reports { // messages at full length
		for _, d := range r.Defects {
			if len(r.Defects) > 1 || !t.shows(d.Message) {
				fmt.Fprintf(w, "\n%s: %s: %s\n", oneLine(r.Dir, 200), d.Cause, safeText(d.Message))
			}
		}
	}
	fmt.Fprintln(w)
	t = newTable(w, "CAUSE", "TASKS")
	t.row("ok", ok)
	count := taskcheck.Count(reports)
	for _, c := range taskcheck.Causes() {
		if n := len(count[c]); n > 0 {
			t.row(c, n)
		}
	}
	return t.flush()
}

// safeText makes untrusted text safe for a terminal. Line breaks stay.
func safeText(s string) string { return plain.Text(s) }

func outcome(o *taskcheck.Outcome) string {
	if o == nil {
		return "-"
	}
	return rewardText(o.Reward)
}
