package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs"
)

func jobControlCommand(a jobs.Action, short string) *cobra.Command {
	return &cobra.Command{
		Use:   string(a) + " DIR",
		Short: short,
		Args:  needArgs(1, 1, "the folder of one job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := jobs.Control(cmd.Context(), args[0], a)
			var rests *jobs.NotRunningError
			if errors.As(err, &rests) && (rests.State == jobs.StateDied || rests.State == jobs.StateStopped) {
				return fmt.Errorf("%w; go on with: turngate run --resume %s", err, plain.Arg(shown(args[0])))
			}
			if err == nil && a == jobs.ActionCancel {
				state, err = awaitEnd(cmd.Context(), args[0], nil)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "job %s: %s\n", oneLine(shown(args[0]), 400), state)
			return nil
		},
	}
}

// lookEvery is the interval at which a running job is looked at.
const lookEvery = 200 * time.Millisecond

// awaitEnd waits until no process runs a job and returns its state. It calls each, if not
// nil, every time that it has looked at the job.
func awaitEnd(ctx context.Context, dir string, each func() error) (jobs.State, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		state, err := jobs.StateOf(ctx, dir)
		if err == nil && each != nil {
			err = each() // after the look: an ended job writes no more
		}
		if err != nil || state != jobs.StateRunning && state != jobs.StatePaused {
			return state, err
		}
		select {
		case <-ctx.Done():
			return state, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
