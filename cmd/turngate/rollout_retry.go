package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/schema"
)

func rolloutRetryCommand(f *rolloutFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "retry ROLLOUT...",
		Short: "Submit the requests of ended rollouts again, under new ids; without --nats at " + defaultURL,
		Long: "Submit the requests of ended rollouts again, under new ids, which are printed. The label " + operate.RetryLabel + " names the first rollout.\n\n" +
			"The credentials are those of the trainer: an operator has no right to submit. The calls of the new rollout go to the same process of the trainer as those of the first one. A trial of a job is run again by `turngate run --resume DIR --rerun CODE`.",
		Args: needArgs(1, 1000, "rollouts of one trainer"),
		PreRunE: func(*cobra.Command, []string) error {
			if role, _ := broker.RoleOf(f.nats.creds); role == broker.RoleOps {
				return usage("--creds: an operator has no right to submit a rollout: want the credentials of its trainer")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, _, ids, err := f.side(cmd, args)
			if err != nil {
				return err
			}
			defer b.Close()
			on := operate.On(b, ids[0].Trainer())
			var all []schema.Request
			for _, id := range ids {
				q, err := on.Again(cmd.Context(), id)
				if err != nil {
					return err
				}
				all = append(all, q)
			}
			for i, q := range all { // they need not be of one group, so each is a batch
				if err := on.Submit(cmd.Context(), q); err != nil {
					return fmt.Errorf("submit %s again: %w", ids[i], err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), q.ID)
			}
			return nil
		},
	}
}
