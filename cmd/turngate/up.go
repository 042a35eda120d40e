package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/contexts"
	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/jobs/recorded"
)

func upCommand(hurry <-chan struct{}) *cobra.Command {
	wf := workerFlags{patience: workerPatience()}
	var sf serverFlags
	var cf consoleFlags
	var uc upContext
	cmd := &cobra.Command{
		Use:     "up",
		Short:   "Start NATS and a worker in one process",
		Long:    "Start a NATS server on 127.0.0.1 with JetStream and a worker in one process. Credentials are generated into the state directory. At a terminal, the URL on stderr opens a console in a browser of this host.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return usageOf(wf.check(), cf.check(), uc.check()) },
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			process, err := handover.Join(wf.state)
			if err != nil {
				return err
			}
			defer process.Leave()
			if err := process.Begin(); errors.Is(err, handover.ErrBusy) {
				return fmt.Errorf("%w %s: give this one its own with --state", err, wf.state)
			} else if err != nil {
				return err
			}
			who, err := identify(wf.state, "")
			if err != nil {
				return err
			}
			log := newLogger(cmd, zerolog.InfoLevel)
			m, err := wf.monitor.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			c := sf.config(wf.state, log)
			c.Workers = append(c.Workers, who.name)
			srv, err := broker.StartEmbedded(c)
			if err != nil {
				return err
			}
			defer srv.Shutdown()
			defer sf.desk(ctx, srv, log)()
			nf := natsFlags{url: srv.URL(), creds: srv.WorkerCreds(who.name)}
			b, err := nf.dial(ctx, "worker", who.name, log)
			if err != nil {
				return err
			}
			defer b.Close()
			m.watchBacklog(b)
			m.watchStore(wf.state)
			if cf.address() != consoleOff {
				role, creds := broker.RoleAdmin, srv.AdminCreds()
				if cf.consoleReadOnly {
					role, creds = broker.RoleOps, srv.OpsCreds()
				}
				person := natsFlags{url: srv.URL(), creds: creds}
				b, err := person.dial(ctx, role, role, log)
				if err != nil {
					noConsole(cmd.ErrOrStderr(), err)
				} else {
					defer b.Close()
					defer cf.serve(ctx, cmd.ErrOrStderr(), console.Config{Source: &console.Bus{System: recorded.On(b), URL: srv.URL(), Creds: creds}, System: operate.On(b, ""), Play: sf.play(srv, log), HTTP: m.http(), Log: log})()
				}
			}
			return wf.serve(ctx, b, process, who, hurry, m, log, func() {
				if err := sf.print(cmd.OutOrStdout(), srv, who.name); err != nil {
					log.Warn().Err(err).Msg("the credentials are not listed")
				}
				if err := uc.store(cmd, wf.state, srv); err != nil {
					log.Warn().Err(err).Msg("there is no context for this server")
				}
				log.Info().Str("worker", who.name).Stringer("slots", &wf.room.slots).Msg("NATS and a worker are ready")
			})
		},
	}
	wf.add(cmd)
	sf.add(cmd)
	cf.add(cmd.Flags())
	uc.add(cmd.Flags())
	return cmd
}

// upContext is the context that the server of `turngate up` gets.
type upContext struct{ context string }

func (u *upContext) add(fl *pflag.FlagSet) {
	fl.StringVar(&u.context, "context", "", `name of the context that this server gets; "": none (default: up, or up-NAME by the folder of --state)`)
}

func (u *upContext) check() error {
	if u.context == "" {
		return nil
	}
	return flagOf("context", contexts.CheckName(u.context))
}

// store adds the context, or one of an earlier start anew, and prints its name.
func (u *upContext) store(cmd *cobra.Command, state string, srv *broker.Embedded) error {
	if cmd.Flags().Changed("context") && u.context == "" {
		return nil
	}
	dir, err := filepath.Abs(state)
	if err != nil {
		return err
	}
	name := u.context
	if name == "" {
		name = "up"
		if dir != stateDir() {
			name += "-" + token(filepath.Base(dir))
		}
	}
	store, err := contexts.Open()
	if err != nil {
		return err
	}
	c, err := newContext(name, srv.URL(), srv.OpsCreds(), "turngate up --state "+dir)
	if err != nil {
		return err
	}
	err = store.Add(c, func(old contexts.Context) bool { return filepath.Dir(old.Creds) == filepath.Dir(c.Creds) })
	if err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "context  %s: turngate context use %s, or --context %s with a command\n", name, name, name)
	}
	return err
}
