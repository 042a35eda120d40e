package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// personTime is the time limit of a person's task.
const personTime = 24 * time.Hour

// aShell is the default command of a person. Its exit status is 0, since the last command of a
// person says nothing about the task.
const aShell = `if command -v bash >/dev/null 2>&1; then bash; else sh; fi; exit 0`

type sandboxRunFlags struct {
	run runFlags
}

func sandboxCommand(k *keeper) *cobra.Command {
	cmd := &cobra.Command{Use: "sandbox", Short: "Work in the sandbox of a task by hand"}
	cmd.AddCommand(sandboxRunCommand(k), sandboxListCommand(), sandboxExecCommand(), sandboxCopyCommand(), sandboxPortsCommand(), sandboxRemoveCommand())
	return cmd
}

func sandboxRunCommand(k *keeper) *cobra.Command {
	f := &sandboxRunFlags{run: runFlags{keeper: k}}
	cmd := &cobra.Command{
		Use:   "run TASK|IMAGE [-- ARGV...]",
		Short: "Do a task yourself: a shell in the agent's place, then the task's tests",
		Long: "Make the sandbox that an agent would get for a task directory, with its files, setup, side-cars, user, variables and network, and run a shell in it at this\n" +
			"terminal, or ARGV. When it ends, the task's verifier runs; its output and the reward are printed. TURNGATE_INSTRUCTION names a file with the instruction.\n" +
			"A task with steps has a shell for each step.\n\n" +
			"An argument that is no folder is an image; its sandbox has no verifier.\n\n" +
			"Exit status: that of ARGV, 0 for a shell; 1 when the rollout had another fault, 2 when the arguments are invalid.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			what, _ := atDash(cmd, args)
			wrong := []error{f.run.box.check(), f.run.taskEnv.check(), f.run.backends.check(), checkKeep("keep", f.run.keep)}
			if len(what) != 1 {
				wrong = append(wrong, fmt.Errorf("%d arguments: want a task directory or an image", len(what)))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.run.keep > 0 && k == nil {
				return viaKeeper(cmd)
			}
			what, argv := atDash(cmd, args)
			return f.run.atTerminal(cmd, what[0], argv)
		},
	}
	f.run.box.add(cmd)
	fl := cmd.Flags()
	f.run.taskEnv.add(fl)
	addSandbox(fl, &f.run.sandbox, &f.run.image, "", ", instead of the task's own")
	f.run.backends.add(fl, "")
	addKeep(fl, &f.run.keep, "keep", "keep the sandbox after the command, for a time, and print the command that enters it")
	fl.StringArrayVar(&f.run.setup, "setup", nil, "shell command to run in the sandbox before the shell, after the task's own (repeatable)")
	return cmd
}

// atTerminal runs a task, or an image without one, with the person at this terminal as
// its agent.
func (f *runFlags) atTerminal(cmd *cobra.Command, what string, argv []string) error {
	f.name, f.parallel, f.agents = "local", 1, cacheDir()
	t, err := f.taskOrImage(cmd, what)
	if err != nil {
		return err
	}
	if len(argv) == 0 {
		argv = []string{"/bin/sh", "-c", aShell}
	}
	q, err := f.request(t, jobs.Variant{Agent: agents.Person().Name}, argv)
	if err != nil {
		return err
	}
	q.Limits.AgentMS, q.Group = personTime.Milliseconds(), jobs.NewGroup()
	for i := range q.Steps {
		q.Steps[i].AgentMS = personTime.Milliseconds()
	}
	if q.ID, err = jobs.RolloutID(f.name, q.Group, 0); err != nil {
		return err
	}
	if err := schema.Validate(&q); err != nil {
		return usageOf(err)
	}
	seat := newSeat(cmd.InOrStdin(), plain.Raw(cmd.OutOrStdout()), plain.Raw(cmd.ErrOrStderr())) // the person's own programs move the cursor
	defer seat.close()
	defer context.AfterFunc(cmd.Context(), seat.cook)() // the end of the sandbox may take a while
	f.person = seat.begin
	if seat.screen >= 0 {
		q.Agent.Env = merged(q.Agent.Env, map[string]string{"TERM": os.Getenv("TERM")})
	}
	ctx, s, err := openSingles(cmd.Context(), f, nil, logger(cmd))
	if err != nil {
		return err
	}
	defer s.close()
	r, err := s.run(ctx, q, t.Bundle)
	if err != nil {
		return err
	}
	return printEnd(cmd.ErrOrStderr(), &r)
}

// taskOrImage loads a task directory. A name that is no folder is an image.
func (f *runFlags) taskOrImage(cmd *cobra.Command, what string) (*tasks.Task, error) {
	info, err := os.Stat(what)
	if err == nil && info.IsDir() {
		f.chooseSandbox(cmd, []string{what})
		given, err := f.taskEnv.values()
		if err != nil {
			return nil, usageOf(err)
		}
		t, err := tasks.Load(what, tasks.Options{Env: given})
		return t, usageOf(err)
	}
	if strings.HasPrefix(what, ".") || strings.HasPrefix(what, "/") {
		return nil, usage("%q is not valid: want a task directory or an image", what)
	}
	f.image = what
	f.chooseSandbox(cmd, nil)
	if !f.backends.local.images(f.sandbox) {
		return nil, usage("--sandbox: %s makes no sandboxes of images such as %q: use %s, or name a task directory", f.sandbox, what, orList(backends.WithImages()))
	}
	return &tasks.Task{Request: schema.Request{Task: schema.Task{Name: "image", Instruction: "Look around."}}}, nil
}

// printEnd prints the end of each verifier's output, and the reward.
func printEnd(w io.Writer, r *schema.Result) error {
	for _, p := range r.Phases {
		if (p.Name == "verify" || strings.HasSuffix(p.Name, "/verify")) && p.Output != "" {
			fmt.Fprintf(w, "\n%s:\n%s\n", oneLine(p.Name, 200), strings.TrimRight(safeText(p.Output), "\n"))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", oneLine(n, 1000))
	}
	if r.Reward != nil {
		fmt.Fprintf(w, "reward: %s\n", rewardText(r.Reward))
	}
	switch {
	case r.Fault == nil:
		return nil
	case r.Fault.Code == schema.CodeExit && r.Exit != nil:
		return &exitError{code: r.Exit.Code}
	default:
		return &exitError{code: exitFault, err: errors.New(oneLine(r.Fault.Error(), 1000))}
	}
}
