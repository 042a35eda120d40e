package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
)

func deadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "Requests that could not be read: list, show, requeue, drop",
		Long: "Requests that no worker could read are kept with their body. ls and show need a credential of an operator; requeue and drop\n" +
			"change streams and need the admin's one.",
	}
	cmd.AddCommand(
		deadListCommand(),
		deadAction("show SEQ", "Show one with its body", "ops", cobra.ExactArgs(1), deadShow),
		deadAction("requeue SEQ...", "Put them back where they came on", "admin", cobra.MinimumNArgs(1), func(ctx context.Context, cmd *cobra.Command, b *broker.Broker, args []string) error {
			return each(ctx, cmd, args, "requeued", b.Dead.Requeue)
		}),
		deadAction("drop SEQ...", "Delete them", "admin", cobra.MinimumNArgs(1), func(ctx context.Context, cmd *cobra.Command, b *broker.Broker, args []string) error {
			return each(ctx, cmd, args, "dropped", b.Dead.Drop)
		}),
	)
	return cmd
}

func deadAction(use, short, role string, args cobra.PositionalArgs, run func(context.Context, *cobra.Command, *broker.Broker, []string) error) *cobra.Command {
	var nf natsFlags
	cmd := &cobra.Command{
		Use: use, Short: short,
		Args: func(cmd *cobra.Command, a []string) error {
			if err := args(cmd, a); err != nil {
				return usage("%w", err)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			b, err := nf.dial(cmd.Context(), role, role, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			return run(cmd.Context(), cmd, b, a)
		},
	}
	nf.add(cmd, defaultURL)
	return cmd
}

func deadListCommand() *cobra.Command {
	var output string
	cmd := deadAction("ls", "List them, oldest first", "ops", cobra.NoArgs, func(ctx context.Context, cmd *cobra.Command, b *broker.Broker, _ []string) error {
		return deadList(ctx, cmd, b, output)
	})
	addListOutput(cmd.Flags(), &output)
	return cmd
}

// deadEntry is a dead message in a list, without its body.
type deadEntry struct {
	Seq     uint64 `json:"seq"`
	Reason  string `json:"reason"`
	Why     string `json:"why"`
	Subject string `json:"subject"`
	Size    int    `json:"size"`
}

// maxDeadListed is the largest number of dead messages in a list. If there are
// more, the list has the newest.
const maxDeadListed = 1000

func deadList(ctx context.Context, cmd *cobra.Command, b *broker.Broker, output string) error {
	all, err := b.Dead.List(ctx, maxDeadListed)
	if err != nil {
		return err
	}
	if !isTable(output) {
		var list []deadEntry
		for _, d := range all {
			list = append(list, deadEntry{d.Seq, d.Reason, d.Why, d.Subject, d.Size})
		}
		return printList(cmd.OutOrStdout(), output, list)
	}
	t := newList(cmd.OutOrStdout(), output, "SEQ", "REASON", "BYTES", "CAME ON", "WHY")
	t.spare, t.cut = []string{"CAME ON", "BYTES"}, []string{"WHY"}
	for _, d := range all {
		t.row(d.Seq, oneLine(d.Reason, 20), d.Size, oneLine(d.Subject, 60), oneLine(d.Why, 120))
	}
	return t.flush()
}

func deadShow(ctx context.Context, cmd *cobra.Command, b *broker.Broker, args []string) error {
	seq, err := sequence(args[0])
	if err != nil {
		return err
	}
	d, err := b.Dead.Get(ctx, seq)
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), map[string]any{
		"seq": d.Seq, "reason": d.Reason, "why": d.Why, "subject": d.Subject, "size": d.Size, "body": d.Data, // base64
	})
}

func sequence(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, usage("SEQ: %q is not valid: want a number that `turngate dead ls` shows", s)
	}
	return n, nil
}

func each(ctx context.Context, cmd *cobra.Command, args []string, done string, act func(context.Context, uint64) error) error {
	for _, a := range args {
		seq, err := sequence(a)
		if err != nil {
			return err
		}
		if err := act(ctx, seq); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s %d\n", done, seq)
	}
	return nil
}
