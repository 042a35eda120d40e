package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

func rolloutWatchCommand(f *rolloutFlags) *cobra.Command {
	var t tapFlags
	cmd := &cobra.Command{
		Use:   "watch ROLLOUT",
		Short: "Show a rollout's events until its result; without --nats at " + defaultURL,
		Long: "Show a rollout's events, also the earlier ones, until its result, with the credentials of an operator (ops.nk).\n\n" +
			"Exit status: 0 if the rollout ended without a fault, 1 if it has one, or if there is no such rollout.",
		Args: needArgs(1, 1, "the id of one rollout"),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{t.check()}
			for _, name := range args {
				_, err := schema.ParseID(name)
				wrong = append(wrong, err)
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nats.url = cmp.Or(f.nats.url, defaultURL)
			b, err := f.nats.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			result, err := follow(cmd.Context(), b, schema.ID(args[0]), t.shower(cmd, b))
			if err == nil && result.Fault != nil {
				return &exitError{code: exitFault}
			}
			return err
		},
	}
	t.add(cmd.Flags())
	return cmd
}
