package main

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/telemetry"
)

// metricsFlags are the flags for the metrics of a process.
type metricsFlags struct {
	metrics string // address; empty: none
	pprof   bool
}

func (f *metricsFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.metrics, "metrics", "", "address and port for /metrics, /livez and /readyz, such as 127.0.0.1:9464 (default: none)")
	f.addPprof(fl)
}

func (f *metricsFlags) addPprof(fl *pflag.FlagSet) {
	fl.BoolVar(&f.pprof, "pprof", false, "serve /debug/pprof there, too: only on a loopback address")
}

// check checks the flags; name is that of the address.
func (f *metricsFlags) check(name string) error {
	if f.metrics == "" {
		if f.pprof {
			return errors.New("--pprof: it needs --" + name)
		}
		return nil
	}
	if err := telemetry.CheckAddress(f.metrics); err != nil {
		return flagOf(name, err)
	}
	if f.pprof && !telemetry.Loopback(f.metrics) {
		return errors.New("--pprof: it shows the inside of the process, so --" + name + " must be a loopback address, such as 127.0.0.1:9464")
	}
	return nil
}

// monitor is the server of a process's metrics. Its methods do nothing on nil, the
// monitor of a process without metrics.
type monitor struct {
	metrics *telemetry.Metrics
	server  *telemetry.Server
	stop    context.CancelFunc
	ended   chan struct{}
}

// begin starts the server; nil: the flags ask for none. It runs until close, also
// after the command's context has ended, so that a process that stops shows that it
// does.
func (f *metricsFlags) begin(log zerolog.Logger) (*monitor, error) {
	if f.metrics == "" {
		return nil, nil
	}
	m := &monitor{metrics: telemetry.New(version), ended: make(chan struct{})}
	var err error
	if m.server, err = telemetry.Listen(telemetry.Config{Address: f.metrics, Metrics: m.metrics, Pprof: f.pprof, Log: log}); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	go func() {
		defer close(m.ended)
		if err := m.server.Run(ctx); err != nil {
			log.Warn().Err(err).Msg("metrics are no longer served")
		}
	}()
	log.Info().Str("url", "http://"+m.server.Address()+"/metrics").Msg("metrics are served")
	return m, nil
}

func (m *monitor) close() {
	if m != nil {
		m.stop()
		<-m.ended
	}
}

// ready sets the check of /readyz.
func (m *monitor) ready(check func() error) {
	if m != nil {
		m.server.Ready(check)
	}
}

// rollouts and queue return the metrics of a worker.
func (m *monitor) rollouts() *telemetry.Rollouts {
	if m == nil {
		return nil
	}
	return m.metrics.Rollouts()
}

func (m *monitor) queue() *telemetry.Queue {
	if m == nil {
		return nil
	}
	return m.metrics.Queue()
}

// http, answers and lines return the metrics of an HTTP server, of a process that answers
// model calls, and of a machine.
func (m *monitor) http() *telemetry.HTTP {
	if m == nil {
		return nil
	}
	return m.metrics.HTTP()
}

func (m *monitor) answers() *telemetry.Answers {
	if m == nil {
		return nil
	}
	return m.metrics.Answers()
}

func (m *monitor) lines(slots int) *telemetry.Lines {
	if m == nil {
		return nil
	}
	return m.metrics.Lines(slots)
}

// watchWorker shows the state of a worker.
func (m *monitor) watchWorker(now func() telemetry.Worker) {
	if m != nil {
		m.metrics.WatchWorker(now)
	}
}

// watchStore shows the disk of a folder with a server's store.
func (m *monitor) watchStore(dir string) {
	if m != nil {
		m.metrics.WatchStore(func() (free, size int64) { return machine.FreeDisk(dir) })
	}
}

// watchBacklog shows the queues of all trainers.
func (m *monitor) watchBacklog(b *broker.Broker) {
	if m == nil {
		return
	}
	var lines quiet.Lines
	backlogs := queue.NewBacklogs(b)
	m.metrics.WatchBacklog(func(ctx context.Context) (telemetry.Backlog, error) {
		read, err := backlogs.Read(ctx)
		if err != nil {
			if skipped, speak := lines.Speak(err.Error(), time.Now()); speak {
				b.Log().Warn().Err(err).Int("not_logged", skipped).Msg("the queues could not be read for their metrics")
			}
		}
		return read.Backlog, err
	})
}

// connected is the check of a process that only needs NATS.
func connected(b *broker.Broker) func() error {
	return func() error {
		if !b.Connected() {
			return errors.New("it has no connection to NATS")
		}
		return nil
	}
}

// until is the check of a process that stops with its context. Until then check decides.
func until(ctx context.Context, check func() error) func() error {
	return func() error {
		if ctx.Err() != nil {
			return errors.New("it stops")
		}
		return check()
	}
}

func metricsCommand() *cobra.Command {
	var nf natsFlags
	var mf metricsFlags
	var listen string
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Show Prometheus the queues of all trainers, their depth and age",
		Long: "Serve the depth and the age of the queues of all trainers at /metrics until SIGTERM. They are read when they are asked for, and not more often than every 5 s.\n\n" +
			"`turngate up` and `turngate nats` serve the same with --metrics; a system with nats-server needs one process of this command, with the credential ops.nk.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if listen == "" {
				return usage("--listen: it needs an address and a port, such as 127.0.0.1:9464")
			}
			mf.metrics = listen
			return usageOf(mf.check("listen"))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLogger(cmd, zerolog.InfoLevel)
			m, err := mf.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			b, err := nf.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, log)
			if err != nil {
				return err
			}
			defer b.Close()
			m.watchBacklog(b)
			m.ready(connected(b))
			<-cmd.Context().Done()
			return nil
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9464", "address and port of the metrics; port 0 is a free one")
	mf.addPprof(cmd.Flags())
	return cmd
}
