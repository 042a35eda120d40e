package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
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
	wrong := []error{f.job.check(cmd), f.box.check(), f.taskEnv.check(), flagOf("name", schema.CheckTrainer(f.name))}
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
	_, err := agents.Find(agents.All(), f.agent)
	wrong = append(wrong, err, f.model.check(),
		atLeast("agent-timeout", f.agentTimeout, 0), atLeast("max-turns", f.maxTurns, 0), atLeast("max-calls", f.maxCalls, 0), atLeast("max-repeats", f.maxRepeats, 0))
	for _, m := range f.mcp {
		if name, command, ok := strings.Cut(m, "="); !ok || name == "" || strings.TrimSpace(command) == "" {
			wrong = append(wrong, fmt.Errorf("--mcp: %q is not valid: want NAME=COMMAND", m))
		}
	}
	if asks := schema.Mode(f.mode) != schema.ModeGate; f.job.resume == "" && asks != (f.upstream != "") {
		wrong = append(wrong, fmt.Errorf("--upstream: %q is not valid: want a name with --mode %s or %s, and none with %s", f.upstream, schema.ModeProxy, schema.ModeBlack, schema.ModeGate))
	}
	if f.upstreams != "" {
		_, err := loadUpstreams(f.upstreams)
		wrong = append(wrong, err)
	}
	return usageOf(wrong...)
}

// checkPaths returns the errors in arguments that name tasks.
func checkPaths(args []string) error {
	if args == nil {
		return nil
	}
	_, err := tasks.Find(args)
	return err
}
