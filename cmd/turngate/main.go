// Command turngate runs CLI coding agents as rollouts for reinforcement
// learning. Every model call is a NATS message. This package has only flags,
// wiring and output; the logic is in other packages.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// version is set by the build.
var version = "dev"

// Exit statuses.
const (
	exitOK          = 0
	exitFault       = 1   // the command ran and met a fault
	exitUsage       = 2   // a flag or an argument is wrong
	exitLimit       = 3   // a limit of the user ended a job
	exitTimeout     = 124 // the time of --timeout was over
	exitInterrupted = 130 // the user interrupted the command
)

// exitError is an error with an exit status. Its text, if any, is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "box" { // the sandbox's first process runs nothing else
		os.Exit(local.BoxMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == far.Command { // a worker on another host started it
		os.Exit(far.Serve(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == far.PodBoxCommand { // the first process of a container of a pod
		os.Exit(far.PodBox(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == keeperCommand {
		os.Exit(keep(os.Args[2:]))
	}
	os.Exit(runFor(os.Args[1:], nil))
}

// runFor runs a command in this process, which may be a keeper.
func runFor(args []string, k *keeper) int {
	ctx, hurry, stop := signals(k)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	root := rootCommand(hurry, end, k)
	refuseUnknown(root)
	addHelp(root)
	addCompletions(root)
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if wrong := unknownBefore(cmd); wrong != nil {
			return wrong
		}
		return flagErrors(cmd, args, err)
	})
	var wrong error
	helpOfKnown(root, &wrong)
	err := cmp.Or(root.ExecuteContext(ctx), wrong)
	if ended := (*keeperError)(nil); errors.As(err, &ended) {
		return ended.code
	}
	status := statusOf(ctx, err)
	text := ""
	if err != nil && (status != exitInterrupted || !errors.Is(err, context.Canceled)) {
		text = err.Error()
	}
	var over *timeoutError
	if status == exitTimeout && errors.As(context.Cause(ctx), &over) && !strings.Contains(text, over.Error()) {
		text = over.Error()
	}
	for line := range strings.Lines(text) { // one error per line
		fmt.Fprintln(os.Stderr, "turngate:", safeText(strings.TrimSuffix(line, "\n")))
	}
	return status
}

// statusOf returns the exit status of a command that ended with an error or nil. A
// service that ends because of a signal has no error.
func statusOf(ctx context.Context, err error) int {
	var exit *exitError
	var invalid *schema.InvalidError
	var over *timeoutError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit) && exit.code == exitUsage, errors.As(err, &invalid):
		return exitUsage
	case errors.As(context.Cause(ctx), &over):
		return exitTimeout
	case ctx.Err() != nil:
		return exitInterrupted
	case exit != nil:
		return exit.code
	default:
		return exitFault
	}
}

// timeoutError is the cause with which --timeout ends a command.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("--timeout: %v are over", e.after) }

// refuseUnknown makes an unknown sub-command a usage error that names the known ones.
func refuseUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseUnknown(c)
	}
	if !cmd.HasSubCommands() {
		return
	}
	if cmd.Runnable() { // and takes no arguments
		cmd.Args = func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(c, args[0])
		}
		return
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownCommand(c, args[0])
	}
}

// unknownBefore returns the usage error about the first argument of a command with
// sub-commands, which is no name of one; nil: there is none before a flag that is wrong.
func unknownBefore(c *cobra.Command) error {
	rest := c.Flags().Args()
	if !c.HasSubCommands() || len(rest) == 0 {
		return nil
	}
	for _, sub := range c.Commands() {
		if sub.Name() == rest[0] || sub.HasAlias(rest[0]) { // behind --help of the command above it
			return nil
		}
	}
	return unknownCommand(c, rest[0])
}

// helpOfKnown lets --help behind an unknown sub-command set wrong, in place of the help of the
// command above it.
func helpOfKnown(root *cobra.Command, wrong *error) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if *wrong = unknownBefore(c); *wrong == nil {
			help(c, args)
		}
	})
}

// unknownCommand returns a usage error for a sub-command that c does not have.
func unknownCommand(c *cobra.Command, name string) error {
	if c.SuggestionsMinimumDistance = 2; len(name) < 3 {
		c.SuggestionsMinimumDistance = 1 // rm is as far from ls
	}
	known := c.SuggestionsFor(name)
	if len(known) == 0 {
		for _, s := range c.Commands() {
			if s.IsAvailableCommand() {
				known = append(known, s.Name())
			}
		}
	}
	err := fmt.Errorf("%q is no command of %s", schema.Clip(name, 80), c.CommandPath())
	if len(known) > 0 {
		err = fmt.Errorf("%w: want %s", err, orList(known))
	}
	return usageOf(err)
}

// addHelp gives the root its command help, which refuses unknown commands as others do.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.Run, c.RunE = nil, func(_ *cobra.Command, args []string) error {
			of := root
			for _, name := range args {
				at := slices.IndexFunc(of.Commands(), func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) })
				if at < 0 {
					return unknownCommand(of, name)
				}
				of = of.Commands()[at]
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		}
	}
}

// signals handles SIGINT, SIGTERM and the end of the terminal: the first signal ends the
// context, the second closes hurry. A keeper has no terminal after the end of its command.
func signals(k *keeper) (ctx context.Context, hurry <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(ch, syscall.SIGHUP)
	}
	hurried, done := make(chan struct{}), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-ch:
				if s == syscall.SIGHUP && k != nil && k.over.Load() {
					n--
					continue
				}
			}
			switch n {
			case 0:
				cancel()
			case 1:
				close(hurried)
			}
		}
	}()
	return ctx, hurried, func() {
		signal.Stop(ch)
		close(done)
		cancel()
	}
}

// rootCommand returns all commands. A command calls end when the time of --timeout is
// over.
func rootCommand(hurry <-chan struct{}, end context.CancelCauseFunc, k *keeper) *cobra.Command {
	var timeout time.Duration
	root := &cobra.Command{
		Use:           "turngate",
		Short:         "CLI coding agents as RL rollouts, every model call a NATS message",
		Version:       buildOf(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Long: "turngate runs CLI coding agents in sandboxes as rollouts for reinforcement learning.\n" +
			"Every flag can also be set as TURNGATE_<FLAG>, for example TURNGATE_NATS.",
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			err := fromEnvironment(cmd.Flags())
			if err == nil {
				err = resolveContext(cmd, args)
			}
			if timeout < 0 {
				err = usageOf(err, atLeast("timeout", timeout, 0))
			}
			if err != nil {
				return usageOf(err, checkFlags(cmd, args))
			}
			if timeout > 0 {
				time.AfterFunc(timeout, func() { end(&timeoutError{timeout}) })
			}
			return nil
		},
	}
	root.SetOut(plain.NewWriter(os.Stdout))
	root.SetErr(plain.NewWriter(os.Stderr))
	root.PersistentFlags().Bool("verbose", false, "log what happens, not only what goes wrong")
	root.PersistentFlags().DurationVar(&timeout, "timeout", 0, "end the command after this time, with exit status 124 (default: never)")
	root.AddCommand(runCommand(k), jobCommand(), rolloutCommand(), groupCommand(), taskCommand(), sandboxCommand(k), imageCommand(), upCommand(hurry), natsCommand(), workerCommand(hurry), machineCommand(), queueCommand(), deadCommand(), trainerCommand(), tapCommand(), topCommand(), backupCommand(), restoreCommand(), consoleCommand(), serveCommand(), metricsCommand(), contextCommand(), agentCommand(), doctorCommand(), miniCommand(), toolsCommand(),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), buildOf())
		}})
	root.AddCommand(programCommands()...)
	addInterrupts(root)
	usageOfArgs(root)
	return root
}

// usageOfArgs makes wrong arguments of a command and its sub-commands a usage
// error.
func usageOfArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			if err != nil && len(args) > 0 && strings.HasPrefix(err.Error(), "unknown command") { // of cobra.NoArgs
				err = fmt.Errorf("%q is one argument too many: it takes none", schema.Clip(args[0], 80))
			}
			if err != nil {
				return usage("%s: %w", c.CommandPath(), err)
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		usageOfArgs(c)
	}
}

// fromEnvironment sets the flags that are not on the command line from the
// variables TURNGATE_<FLAG>.
// A job that is resumed has its own settings, which the variables do not change.
func fromEnvironment(flags *pflag.FlagSet) error {
	var wrong []error
	resumes := false
	if f := flags.Lookup("resume"); f != nil {
		v, ok := os.LookupEnv("TURNGATE_RESUME")
		resumes = f.Changed || ok && v != ""
	}
	byURL, byContext := flags.Changed("nats") || flags.Changed("creds"), flags.Changed("context")
	flags.VisitAll(func(f *pflag.Flag) {
		name := "TURNGATE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if f.Name == "context" && byURL || (f.Name == "nats" || f.Name == "creds") && byContext {
			return // the command line says where the server is
		}
		if v, ok := os.LookupEnv(name); ok && !f.Changed && (!resumes || mayDiffer(f.Name)) {
			if err := flags.Set(f.Name, v); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	return usageOf(wrong...)
}

// logger returns a logger to stderr: readable text on a terminal, JSON otherwise.
func logger(cmd *cobra.Command) zerolog.Logger {
	level := zerolog.WarnLevel
	if v, err := cmd.Flags().GetBool("verbose"); err == nil && v {
		level = zerolog.DebugLevel
	}
	return newLogger(cmd, level)
}

func newLogger(cmd *cobra.Command, level zerolog.Level) zerolog.Logger {
	out := cmd.ErrOrStderr()
	if isTerminal(os.Stderr) {
		out = zerolog.ConsoleWriter{Out: out, NoColor: true} // colours are control characters
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
