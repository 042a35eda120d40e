package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/operate"
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
	Unfit   []unfit  `json:"unfit"` // the entries of Parked.Needs, by their needs
}

// unfit are parked requests with equal needs.
type unfit struct {
	Waiting uint64     `json:"waiting"`
	Needs   string     `json:"needs"`
	Workers []obstacle `json:"workers"` // each live one
}

// obstacle is the reason for which a worker cannot run requests.
type obstacle struct {
	Worker string `json:"worker"`
	Why    string `json:"why"` // empty: it can, with a free slot
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
			"The table leaves out empty lanes; wide and the formats of data have all. They also have the needs of parked requests, and for each worker the first need that it does not meet.",
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
			workers, err := operate.On(b, "").Workers(cmd.Context())
			if err != nil {
				return err
			}
			var list []queueEntry
			now := time.Now()
			for _, w := range all.Lanes {
				if trainer == "" || w.Trainer == trainer {
					list = append(list, entryOfLane(&w, &all, workers, now))
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
				t.row(dash(e.Trainer), e.Lane, e.Queued, oldestText(&e), e.Taken, e.Parked.Delay, e.Parked.Needs)
			}
			if err := t.flush(); err != nil || output != formatWide {
				return err
			}
			return printUnfit(cmd.OutOrStdout(), output, list)
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVar(&trainer, "trainer", "", "only the queue of this trainer")
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func oldestText(e *queueEntry) string {
	if e.Oldest == nil {
		return "-"
	}
	return time.Duration(*e.Oldest * float64(time.Second)).Round(time.Second).String()
}

// printUnfit lists the parked requests, with a row for each worker.
func printUnfit(w io.Writer, output string, list []queueEntry) error {
	t := newList(w, output, "TRAINER", "LANE", "PARKED", "NEEDS", "WORKER", "REASON")
	for _, e := range list {
		for _, u := range e.Unfit {
			if len(u.Workers) == 0 {
				t.row(dash(e.Trainer), e.Lane, u.Waiting, u.Needs, "-", "no worker is there")
			}
			for _, o := range u.Workers {
				t.row(dash(e.Trainer), e.Lane, u.Waiting, u.Needs, o.Worker, cmp.Or(o.Why, "no slot is free"))
			}
		}
	}
	if len(t.rows) == 1 {
		return nil
	}
	fmt.Fprintln(w)
	return t.flush()
}

func entryOfLane(w *telemetry.Waiting, all *queue.Backlog, workers []schema.Presence, now time.Time) queueEntry {
	e := queueEntry{Trainer: w.Trainer, Lane: w.Lane, Queued: w.Queued, Taken: w.Taken, Parked: parked{Delay: w.Delayed, Needs: w.Unfit}, Unfit: []unfit{}}
	if !w.Oldest.IsZero() {
		age := max(now.Sub(w.Oldest), 0).Seconds()
		e.Oldest = &age
	}
	fleet := schema.FleetOf(workers)
	slices.SortFunc(fleet.Workers, func(a, b schema.Capacity) int { return cmp.Compare(a.Worker, b.Worker) })
	for _, p := range all.Parked {
		if p.Trainer != w.Trainer || p.Lane != w.Lane {
			continue
		}
		u := unfit{Waiting: p.Waiting, Needs: oneLine(p.Needs.String(), 300), Workers: []obstacle{}}
		for _, c := range fleet.Workers {
			why := oneLine(c.Obstacle(&p.Needs), 400)
			if why == "" && c.Full {
				why = "its host has no room for now"
			}
			u.Workers = append(u.Workers, obstacle{c.Worker, why})
		}
		e.Unfit = append(e.Unfit, u)
	}
	return e
}
