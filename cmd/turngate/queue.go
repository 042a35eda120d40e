package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

func queueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "queue", Short: "Requests that wait for a worker"}
	cmd.AddCommand(queueListCommand())
	return cmd
}

// queueEntry is a lane of a trainer's queue.
type queueEntry struct {
	Trainer string   `json:"trainer"`        // empty: requests outside of a trainer's queue
	Lane    string   `json:"lane"`           // p0, the most urgent, to p3
	Queued  uint64   `json:"queued"`         // no worker has taken them
	Oldest  *float64 `json:"oldest_seconds"` // age of the oldest queued one; null: none is queued, or the age is not known
	Taken   uint64   `json:"taken"`          // a worker runs them
	Parked  parked   `json:"parked"`
}

// parked counts requests that are set aside, by reason.
type parked struct {
	Delay uint64 `json:"delay"` // until their time
	Needs uint64 `json:"needs"` // no worker that looked can run them
}

func queueListCommand() *cobra.Command {
	var nf natsFlags
	var output, trainer string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the lanes of all queues: depth, age, and parked requests by reason",
		Long: "List the lanes of all queues, with the credentials of an operator (ops.nk): queued requests, the age of the oldest one, requests that workers run, and parked ones: delay (until their time), and needs (no worker that looked can run them).\n\n" +
			"The table leaves out empty lanes; wide and the formats of data have all.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if trainer == "" {
				return nil
			}
			return usageOf(flagOf("trainer", schema.CheckTrainer(trainer)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := nf.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			all, err := queue.NewBacklogs(b).Read(cmd.Context())
			if err != nil {
				return err
			}
			var list []queueEntry
			now := time.Now()
			for _, w := range all.Lanes {
				if trainer == "" || w.Trainer == trainer {
					list = append(list, entryOfLane(&w, now))
				}
			}
			if all.Dead > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s could not be read: turngate dead ls\n", plural(int(all.Dead), "request")) //nolint:gosec // the stream is bounded
			}
			if !isTable(output) {
				return printList(cmd.OutOrStdout(), output, list)
			}
			t := newList(cmd.OutOrStdout(), output, "TRAINER", "LANE", "QUEUED", "OLDEST", "RUNNING", "DELAYED", "UNFIT")
			for _, e := range list {
				if output != formatWide && e.Queued+e.Taken+e.Parked.Delay+e.Parked.Needs == 0 {
					continue
				}
				oldest := "-"
				if e.Oldest != nil {
					oldest = time.Duration(*e.Oldest * float64(time.Second)).Round(time.Second).String()
				}
				t.row(dash(e.Trainer), e.Lane, e.Queued, oldest, e.Taken, e.Parked.Delay, e.Parked.Needs)
			}
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVar(&trainer, "trainer", "", "only the queue of this trainer")
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func entryOfLane(w *telemetry.Waiting, now time.Time) queueEntry {
	e := queueEntry{Trainer: w.Trainer, Lane: w.Lane, Queued: w.Queued, Taken: w.Taken, Parked: parked{Delay: w.Delayed, Needs: w.Unfit}}
	if !w.Oldest.IsZero() {
		age := max(now.Sub(w.Oldest), 0).Seconds()
		e.Oldest = &age
	}
	return e
}
