package main

import (
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/jobs/recorded"
)

func upCommand(hurry <-chan struct{}) *cobra.Command {
	var wf workerFlags
	var sf serverFlags
	var cf consoleFlags
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Start NATS and a worker in one process",
		Long:    "Start a NATS server on 127.0.0.1 with JetStream and a worker in one process. Credentials are generated into the state directory. At a terminal, the URL on stderr opens a console in a browser of this host.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return usageOf(wf.check(), cf.check()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			wid, release, err := identity(wf.state, "")
			if err != nil {
				return err
			}
			defer release()
			log := newLogger(cmd, zerolog.InfoLevel)
			m, err := wf.monitor.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			c := sf.config(wf.state, log)
			c.Workers = append(c.Workers, wid)
			srv, err := broker.StartEmbedded(c)
			if err != nil {
				return err
			}
			defer srv.Shutdown()
			nf := natsFlags{srv.URL(), srv.WorkerCreds(wid)}
			b, err := nf.dial(ctx, "worker", wid, log)
			if err != nil {
				return err
			}
			defer b.Close()
			m.watchBacklog(b)
			if cf.address() != consoleOff {
				watch := natsFlags{srv.URL(), srv.OpsCreds()}
				ops, err := watch.dial(ctx, broker.RoleOps, broker.RoleOps, log)
				if err != nil {
					noConsole(cmd.ErrOrStderr(), err)
				} else {
					defer ops.Close()
					defer cf.serve(ctx, cmd.ErrOrStderr(), console.Config{Source: &console.Bus{System: recorded.On(ops), URL: srv.URL()}, Log: log})()
				}
			}
			return wf.serve(ctx, b, wid, hurry, m, log, func() {
				if err := sf.tell(cmd.OutOrStdout(), srv, wid); err != nil {
					log.Warn().Err(err).Msg("the credentials are not listed")
				}
				log.Info().Str("worker", wid).Int("slots", wf.slots).Msg("NATS and a worker are ready")
			})
		},
	}
	wf.add(cmd)
	sf.add(cmd)
	cf.add(cmd.Flags())
	return cmd
}
