package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
)

func backupCommand() *cobra.Command {
	var nf natsFlags
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Save the streams of a server to a new folder, with the credential of the admin",
		Long: "Save the streams of a server to a new folder, with the credential of the admin (admin.nk): requests, records, bundles, artifacts, events. The server and its clients may work meanwhile.\n\n" +
			"The folder has the mode 0700, its files 0600. It has tasks, transcripts and all other data of the trainers, and no credentials: copy the folder creds of the server's --state, too.",
		Args: needArgs(1, 1, "the folder of the backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := nf.dial(cmd.Context(), broker.RoleAdmin, broker.RoleAdmin, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			t := newTable(cmd.OutOrStdout(), "STREAM", "MESSAGES", "BYTES")
			_, err = broker.SaveBackup(cmd.Context(), b, args[0], buildOf(), func(s *broker.SavedStream) { t.row(s.Name, s.Messages, s.Bytes) })
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "saved in %s, without credentials: copy the folder creds of the server's --state, too\n", args[0])
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	return cmd
}

func restoreCommand() *cobra.Command {
	var nf natsFlags
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Make the streams of a backup on a new server, with the credential of the admin",
		Long: "Make the streams of a backup on a server without streams, with the credential of the admin (admin.nk). Start it by `turngate nats`, and its workers afterwards.\n\n" +
			"The files are checked with their sums first. A server with streams is refused. Rollouts that ran when the backup was made run again, as another attempt.",
		Args: needArgs(1, 1, "the folder of a backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := broker.OpenBackup(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			b, err := nf.dial(cmd.Context(), broker.RoleAdmin, broker.RoleAdmin, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			t := newTable(cmd.OutOrStdout(), "STREAM", "MESSAGES", "BYTES")
			if err := broker.RestoreBackup(cmd.Context(), b, args[0], from, func(s *broker.SavedStream) { t.row(oneLine(s.Name, 60), s.Messages, s.Bytes) }); err != nil {
				return err
			}
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	return cmd
}
