package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
)

func jobAttachCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "attach DIR",
		Short: "Show the progress of a running job and its results, and end with its exit status",
		Long: "Show the progress of a job that another process runs, and at its end its results and its summary, as that `turngate run` does. Any number of commands can be attached.\n\n" +
			"Ctrl-C ends this command and not the job. `turngate job cancel DIR` ends the job.\n\n" +
			"Exit status: that of the job; 1 if its process was killed, 130 if this command was interrupted.",
		Args: needArgs(1, 1, "the folder of one job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, dir := cmd.Context(), args[0]
			state, err := watch(cmd, dir)
			if ctx.Err() != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "detached; the job goes on: turngate job attach %s\n", plain.Arg(oneLine(shown(dir), 4096)))
				return &exitError{code: exitInterrupted}
			}
			if err != nil {
				return err
			}
			return printEnded(cmd, output, dir, state)
		},
	}
	addOutput(cmd.Flags(), &output, "table", "json", "jsonl")
	return cmd
}

// watch shows the progress of a job until no process runs it, and returns its state.
func watch(cmd *cobra.Command, dir string) (jobs.State, error) {
	ctx := cmd.Context()
	return awaitEnd(ctx, dir, func() error {
		w := &attached{}
		c := boardOf(cmd, isTerminal(os.Stderr))
		c.Now = w.now
		w.Board = progress.New(c)
		defer w.End()
		err := jobs.Follow(ctx, dir, w)
		if rests := (*jobs.NotRunningError)(nil); errors.As(err, &rests) {
			return nil // its process begins or ends
		}
		return err
	})
}

// attached is the board of a job that another process runs.
type attached struct {
	*progress.Board

	mu sync.Mutex
	at time.Time
}

// Time implements jobs.Watcher.
func (w *attached) Time(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = at
}

func (w *attached) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at.IsZero() {
		return time.Now()
	}
	return w.at
}

// printEnded prints the results of a job that no process runs. The error has the exit
// status of its run.
func printEnded(cmd *cobra.Command, output, dir string, state jobs.State) error {
	p, results, err := jobs.Read(dir)
	if err != nil {
		return err
	}
	var stopped error
	switch {
	case state == jobs.StateDied:
		stopped = &jobs.NotRunningError{Dir: dir, State: state}
	case state == jobs.StateStopped && p.StoppedBy == jobs.ByLimit:
		stopped = &jobs.LimitError{Reason: p.Stopped}
	case state == jobs.StateStopped:
		stopped = errors.New(p.Stopped)
		if p.StoppedBy == jobs.ByInterrupt {
			stopped = &exitError{exitInterrupted, stopped}
		}
	}
	return printJobEnd(cmd, output, &p, shown(dir), results, givenLimits(p.Flags["max-cost"] != nil, p.Flags["max-tokens-total"] != nil), stopped)
}
