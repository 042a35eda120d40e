package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/plain"
)

// deskAgain is the time between two tries to answer hosts that enroll.
const deskAgain = 2 * time.Second

// serverFlags are the flags for a NATS server in this process.
type serverFlags struct {
	port        int
	trainers    string
	workers     string
	relaxedSync bool
	enroll      bool
}

func (f *serverFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.IntVar(&f.port, "port", 4222, "port of NATS on 127.0.0.1")
	fl.StringVar(&f.trainers, "trainers", "local", "names of trainers to make credentials for, comma-separated; see also 'turngate trainer add'")
	fl.StringVar(&f.workers, "workers", "", "names of workers to make credentials for, comma-separated; see also 'turngate worker add'")
	fl.BoolVar(&f.enroll, "enroll", false, "let hosts without a credential ask to become machines, see 'turngate machine enroll'")
	fl.BoolVar(&f.relaxedSync, "relaxed-sync", false, "confirm writes before they are on disk: faster, but a power failure may lose the last two minutes")
}

func (f *serverFlags) config(state string, log zerolog.Logger) broker.EmbeddedConfig {
	return broker.EmbeddedConfig{StateDir: state, Port: f.port, Trainers: splitList(f.trainers), Workers: splitList(f.workers), Relaxed: f.relaxedSync, Enroll: f.enroll, Log: log}
}

// desk answers hosts that enroll at the server, until end is called. A desk that cannot
// connect is tried again and does not keep the server from starting: strangers may hold all
// connections of its account.
func (f *serverFlags) desk(ctx context.Context, srv *broker.Embedded, log zerolog.Logger) (end func()) {
	if !f.enroll {
		return func() {}
	}
	ready, failed, over := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	d := &enroll.Desk{Keys: srv.Keyring, Log: log, Ready: func() { close(ready) }}
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer close(over)
		for {
			err := d.Run(ctx, srv.URL())
			if err == nil || ctx.Err() != nil {
				return
			}
			log.Error().Err(err).Msg("hosts that enroll are not answered; the server tries again")
			select {
			case failed <- struct{}{}:
			default:
			}
			if wire.Pause(ctx, deskAgain) != nil {
				return
			}
		}
	}()
	select {
	case <-ready:
	case <-failed:
	case <-ctx.Done():
	}
	return func() {
		stop()
		<-over
	}
}

// print prints the server's URL and how its clients connect. self is the worker in
// this process, if any.
func (f *serverFlags) print(out io.Writer, srv *broker.Embedded, self string) error {
	trainers, err := srv.Trainers()
	if err != nil {
		return err
	}
	workers, err := srv.Workers()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "NATS     %s\n", srv.URL())
	for _, tid := range trainers {
		printTrainer(out, srv.URL(), srv.Keyring, tid)
	}
	for _, wid := range workers {
		if wid != self {
			printWorker(out, srv.URL(), srv.Keyring, wid)
		}
	}
	fmt.Fprintf(out, "watch    turngate tap --nats %s --creds %s\n", srv.URL(), plain.Arg(srv.OpsCreds()))
	if f.enroll {
		fmt.Fprintf(out, "enroll   turngate machine enroll --nats %s on a host, then turngate machine approve CODE --nats %s --keys %s\n", srv.URL(), srv.URL(), plain.Arg(srv.Dir()))
	}
	fmt.Fprintf(out, "more     turngate trainer add NAME, turngate worker add NAME, with --nats %s --keys %s\n", srv.URL(), plain.Arg(srv.Dir()))
	return nil
}

func printTrainer(out io.Writer, url string, keys *broker.Keyring, tid string) {
	fmt.Fprintf(out, "trainer  %s: --nats %s --creds %s --name %s\n", tid, broker.ShownURL(url), plain.Arg(keys.TrainerCreds(tid)), tid)
}

func printWorker(out io.Writer, url string, keys *broker.Keyring, wid string) {
	fmt.Fprintf(out, "worker   %s: turngate worker --nats %s --creds %s --state DIR\n", wid, broker.ShownURL(url), plain.Arg(keys.WorkerCreds(wid)))
}

// natsCommand runs the server without a worker.
func natsCommand() *cobra.Command {
	var sf serverFlags
	var state, routes string
	var cluster broker.ClusterConfig
	var mf metricsFlags
	cmd := &cobra.Command{
		Use:   "nats",
		Short: "Start a NATS server without a worker",
		Long: "Start a NATS server on 127.0.0.1 with JetStream and generated credentials, for workers and trainers in other processes.\n\n" +
			"Three of them with --cluster-name, --cluster-port, --routes and a shared --creds-dir make a cluster; its workers take --replicas 3.\n\n" +
			"A server that cannot write its store, for example on a full disk, ends with an error: its supervisor starts it again. What it has confirmed is kept.\n\n" +
			"For servers on other hosts, `turngate nats config` prints the same accounts for nats-server.",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return usageOf(mf.check("metrics")) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(cmd, zerolog.InfoLevel)
			m, err := mf.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			ctx, fail := context.WithCancelCause(cmd.Context())
			defer fail(nil)
			c := sf.config(state, log)
			c.Failed = fail
			cluster.Routes = splitList(routes)
			c.Cluster = cluster
			srv, err := broker.StartEmbedded(c)
			if err != nil {
				return storeFailed(ctx, err)
			}
			defer srv.Shutdown()
			defer sf.desk(ctx, srv, log)()
			if err := sf.print(cmd.OutOrStdout(), srv, ""); err != nil {
				return err
			}
			if m != nil {
				nf := natsFlags{url: srv.URL(), creds: srv.OpsCreds()}
				b, err := nf.dial(ctx, broker.RoleOps, broker.RoleOps, log)
				if err != nil {
					return storeFailed(ctx, err)
				}
				defer b.Close()
				m.watchBacklog(b)
				m.watchStore(state)
				m.ready(srv.Healthy)
			}
			log.Info().Str("url", srv.URL()).Msg("NATS is ready")
			defer underSystemd(ctx, func() error { return nil }, log)()
			<-ctx.Done()
			if cmd.Context().Err() != nil {
				return nil
			}
			return context.Cause(ctx) // the server does not answer writers of that stream any more
		},
	}
	sf.add(cmd)
	fl := cmd.Flags()
	mf.add(fl)
	fl.StringVar(&state, "state", stateDir(), "folder for the server's files")
	fl.StringVar(&cluster.Name, "cluster-name", "", "name of this server in a cluster, such as n1")
	fl.IntVar(&cluster.Port, "cluster-port", 0, "port on 127.0.0.1 for the other servers")
	fl.StringVar(&cluster.Advertise, "cluster-advertise", "", "host:port of this server's cluster port for the other servers (default: its own address)")
	fl.StringVar(&routes, "routes", "", "host:port of the other servers' cluster ports, comma-separated")
	fl.StringVar(&cluster.Creds, "creds-dir", "", "folder of credentials that the servers share (default: in --state)")
	cmd.AddCommand(natsConfigCommand(), natsEnrollCommand())
	return cmd
}
