package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// atDash splits the arguments at "--".
func atDash(cmd *cobra.Command, args []string) (paths, argv []string) {
	if at := cmd.ArgsLenAtDash(); at >= 0 && at <= len(args) {
		return args[:at], args[at:]
	}
	return args, nil
}

// check returns all errors in the flags and arguments, before a task is read.
func (f *runFlags) check(cmd *cobra.Command, args []string) error {
	wrong := []error{f.job.check(cmd), f.box.check(), f.taskEnv.check(), f.backends.check(), flagOf("name", schema.CheckTrainer(f.name)), f.console.check(), f.checkKeepFailed()}
	if args != nil {
		paths, argv := atDash(cmd, args)
		switch {
		case f.recorded != nil:
		case f.job.resume != "" && len(paths)+len(argv) > 0:
			wrong = append(wrong, errors.New("--resume: the job has its tasks and its argv; say nothing but flags"))
		case f.job.resume == "" && len(paths) == 0:
			wrong = append(wrong, errors.New("run: say which task directories to run"))
		default:
			wrong = append(wrong, checkPaths(paths))
		}
	}
	for _, name := range f.agent {
		_, err := agents.Find(agents.All(), name)
		wrong = append(wrong, err)
	}
	wrong = append(wrong, once("agent", f.agent), once("model", f.model), f.answerer.check(),
		atLeast("agent-timeout", f.agentTimeout, 0), atLeast("wait", f.wait, 0), atLeast("max-turns", f.maxTurns, 0), atLeast("max-calls", f.maxCalls, 0), atLeast("max-repeats", f.maxRepeats, 0))
	for _, m := range f.mcp {
		if name, command, ok := strings.Cut(m, "="); !ok || name == "" || strings.TrimSpace(command) == "" {
			wrong = append(wrong, fmt.Errorf("--mcp: %q is not valid: want NAME=COMMAND", m))
		}
	}
	if f.nats.url != "" {
		wrong = append(wrong, f.nats.choose(broker.RoleTrainer, f.name))
	}
	if f.job.resume == "" { // the flags of a job are not known yet
		_, err := f.answerers()
		wrong = append(wrong, err, f.limits.check(f))
	}
	return usageOf(wrong...)
}

// once returns an error for a value that a flag has twice.
func once(flag string, values []string) error {
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			return fmt.Errorf("--%s: %q is given twice", flag, v)
		}
	}
	return nil
}

// checkPaths returns the errors in arguments that name tasks.
func checkPaths(args []string) error {
	if args == nil {
		return nil
	}
	_, err := tasks.Find(args)
	return err
}
