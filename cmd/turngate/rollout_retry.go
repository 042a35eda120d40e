package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// retryLabel is the label of a retried rollout. Its value is the id of the first one.
const retryLabel = "retry_of"

// retryLane is the default lane of a trainer's requests.
const retryLane = 2

func rolloutRetryCommand(f *rolloutFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "retry ROLLOUT...",
		Short: "Submit the requests of ended rollouts again, under new ids; without --nats at " + defaultURL,
		Long: "Submit the requests of ended rollouts again, under new ids, which are printed. The label " + retryLabel + " names the first rollout.\n\n" +
			"The credentials are those of the trainer: an operator has no right to submit. The calls of the new rollout go to the same process of the trainer as those of the first one. A trial of a job is run again by `turngate run --resume DIR --rerun CODE`.",
		Args: needArgs(1, 1000, "rollouts of one trainer"),
		PreRunE: func(*cobra.Command, []string) error {
			if role, _ := broker.RoleOf(f.nats.creds); role == broker.RoleOps {
				return usage("--creds: an operator has no right to submit a rollout: want the credentials of its trainer")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, side, ids, err := f.side(cmd, args)
			if err != nil {
				return err
			}
			defer b.Close()
			var all []schema.Request
			for _, id := range ids {
				q, err := retryOf(cmd, b, id)
				if err != nil {
					return err
				}
				all = append(all, q)
			}
			for i := range all { // they need not be of one group, so each is a batch
				if _, err := side.Submit(cmd.Context(), retryLane, all[i:i+1]); err != nil {
					return fmt.Errorf("submit %s again: %w", ids[i], err)
				}
				fmt.Fprintln(cmd.OutOrStdout(), all[i].ID)
			}
			return nil
		},
	}
}

// retryOf returns the request of an ended rollout under a new id.
func retryOf(cmd *cobra.Command, b *broker.Broker, id schema.ID) (schema.Request, error) {
	s, err := b.Records.State(cmd.Context(), id)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return schema.Request{}, fmt.Errorf("%s: no worker has taken a rollout of that id: %w", id, err)
	case err != nil:
		return schema.Request{}, err
	case !s.Status.Terminal():
		return schema.Request{}, fmt.Errorf("%s has not ended: %s; `turngate rollout cancel` ends it", id, s.Status)
	}
	q, err := b.Records.Request(cmd.Context(), id)
	if err != nil {
		return q, fmt.Errorf("the request of %s: %w", id, err)
	}
	if q.ID, err = jobs.RolloutID(id.Trainer(), jobs.NewGroup(), q.Index); err != nil {
		return q, err
	}
	q.AttemptFloor, q.DelayMS = 0, 0
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	q.Labels[retryLabel] = cmp.Or(q.Labels[retryLabel], string(id))
	return q, q.Validate()
}
