package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

func rolloutShellCommand(f *rolloutFlags) *cobra.Command {
	var user, dir string
	cmd := &cobra.Command{
		Use:   "shell ID [-- CMD...]",
		Short: "Run a command, or a shell, in the sandbox of a running rollout, as an operator; without --nats at " + defaultURL,
		Long: "Run a command, or a shell, in the sandbox of a rollout that runs on a worker with --allow-shell. The credential is that of an operator. It has a terminal if stdin and stdout are terminals. " +
			"The command is in the events of the rollout, and its result gets a note. The command ends with the sandbox, and when the agent ends, unless a verifier in the same sandbox may need the agent's processes.\n\n" +
			"Exit status: that of the command; 1 when the rollout has no sandbox or does not run, 2 when the arguments are invalid.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			what, _ := atDash(cmd, args)
			if len(what) != 1 {
				return usage("%d arguments before --: want the id of a rollout, and the command after --", len(what))
			}
			_, err := schema.ParseID(what[0])
			return usageOf(err)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			what, argv := atDash(cmd, args)
			if len(argv) == 0 {
				argv = []string{"/bin/sh", "-c", aShell}
			}
			f.nats.url = cmp.Or(f.nats.url, defaultURL)
			b, err := f.nats.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			id := schema.ID(what[0])
			s, err := shellState(cmd.Context(), b, id)
			if err != nil {
				return err
			}
			return shellAt(cmd, b, s, sandboxes.Cmd{Args: argv, User: user, Dir: dir})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&user, "user", "u", "", "user of the command (default: the sandbox's)")
	fl.StringVarP(&dir, "workdir", "w", "", "folder of the command (default: the sandbox's)")
	return cmd
}

// shellState returns the state of a rollout that runs. It fails if its worker runs no
// commands of operators.
func shellState(ctx context.Context, b *broker.Broker, id schema.ID) (s schema.State, err error) {
	s, err = b.Records.State(ctx, id)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return s, fmt.Errorf("%s runs on no worker yet, or is not known", id)
	case err != nil:
		return s, err
	case s.Status != schema.StatusRunning:
		return s, fmt.Errorf("%s does not run: it is %s", id, s.Status)
	}
	all, err := b.Records.Workers(ctx)
	if err != nil {
		return s, err
	}
	i := slices.IndexFunc(all, func(p schema.Presence) bool { return p.Worker == s.Worker && p.Instance == s.Instance })
	switch {
	case i < 0:
		return s, fmt.Errorf("%s: its worker %s is not there", id, oneLine(s.Worker, 60))
	case !all[i].Shells:
		return s, fmt.Errorf("%s: its worker %s was started without --allow-shell", id, s.Worker)
	}
	return s, nil
}

// shellAt runs a command of an operator.
func shellAt(cmd *cobra.Command, b *broker.Broker, in schema.State, c sandboxes.Cmd) error {
	ctx := cmd.Context()
	var shell *machines.Shell
	open := func() (net.Conn, error) {
		s, err := machines.OpenShell(ctx, b, in.Worker, line.DefaultTiming(), schema.LineOpen{Want: schema.CanShell, ID: in.ID, Instance: in.Instance, By: operatorName()})
		shell = s
		return s, err
	}
	err := execIn(cmd, box.Over(open, ""), c)
	if shell == nil {
		return err
	}
	end := shell.End()
	if errors.Is(err, sandboxes.ErrLost) && end.Text != "" {
		return fmt.Errorf("%s: %s", in.Worker, end.Text)
	}
	return err
}

// operatorName names the user of this command for events.
func operatorName() string {
	name := "?"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
