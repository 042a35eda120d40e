// Command turngate runs CLI coding agents as rollouts for reinforcement
// learning, with every model call a NATS message. This package has flags,
// wiring and output, and no logic of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
)

// version is set by the build.
var version = "dev"

// Exit statuses.
const (
	exitOK          = 0
	exitFault       = 1   // it ran, and something had a fault
	exitUsage       = 2   // what was asked for makes no sense
	exitInterrupted = 130 // the user stopped it
)

// exitError carries an exit status; its text, if any, is shown.
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
	if len(os.Args) > 1 && os.Args[1] == "box" { // before anything else runs in the sandbox's first process
		os.Exit(local.BoxMain(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, hurry, stop := signals()
	defer stop()
	root := rootCommand(hurry)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	var invalid *schema.InvalidError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintln(os.Stderr, "turngate:", exit.err)
		}
		return exit.code
	case errors.As(err, &invalid):
		fmt.Fprintln(os.Stderr, "turngate:", err)
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		fmt.Fprintln(os.Stderr, "turngate:", err)
		return exitFault
	}
}

// signals: the first one ends the context, the second closes hurry.
func signals() (ctx context.Context, hurry <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	hurried, done := make(chan struct{}), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-ch:
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

func rootCommand(hurry <-chan struct{}) *cobra.Command {
	root := &cobra.Command{
		Use:           "turngate",
		Short:         "CLI coding agents as RL rollouts, every model call a NATS message",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Long: "turngate runs CLI coding agents in sandboxes as rollouts for reinforcement learning.\n" +
			"Every flag can also be set as TURNGATE_<FLAG>, for example TURNGATE_NATS.",
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) },
	}
	root.PersistentFlags().Bool("verbose", false, "log what happens, not only what goes wrong")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.AddCommand(runCommand(), upCommand(hurry), natsCommand(), workerCommand(hurry), deadCommand(), trainerCommand(), tapCommand(), agentCommand(), doctorCommand(), miniCommand(), toolsCommand(),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), version)
		}})
	return root
}

// fromEnvironment gives flags that were not set the value of TURNGATE_<FLAG>.
func fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "TURNGATE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := os.LookupEnv(name); ok && !f.Changed && err == nil {
			if serr := flags.Set(f.Name, v); serr != nil {
				err = usage("%s: %w", name, serr)
			}
		}
	})
	return err
}

// logger writes to stderr: for people on a terminal, JSON otherwise.
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
		out = zerolog.ConsoleWriter{Out: out, NoColor: os.Getenv("NO_COLOR") != ""}
	}
	return zerolog.New(out).Level(level).With().Timestamp().Logger()
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
