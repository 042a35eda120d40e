package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/docker"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/worker"
)

// workerFlags describe a worker on this host.
type workerFlags struct {
	slots     int
	sandboxes string
	networks  string
	state     string
	agents    string
	grace     time.Duration
	cpus      float64
	memoryMB  int64
	replicas  int
	retention time.Duration
}

func (f *workerFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.IntVar(&f.slots, "slots", 2, "rollouts at once")
	fl.StringVar(&f.sandboxes, "sandboxes", "", "sandbox backends to offer, comma-separated: local, docker (default: those that work here)")
	fl.StringVar(&f.networks, "allow-network", "", "networks that requests may ask for besides none: open")
	fl.StringVar(&f.state, "state", stateDir(), "folder for the worker's state")
	fl.StringVar(&f.agents, "agents", cacheDir(), "folder of installed agents")
	fl.DurationVar(&f.grace, "grace", 30*time.Second, "how long running rollouts may go on after SIGTERM")
	fl.IntVar(&f.replicas, "replicas", 0, "copies of every stream: 1, or 3 on a cluster (default: as they are; 1 when they are made)")
	fl.DurationVar(&f.retention, "retention", 72*time.Hour, "how long finished rollouts are kept (0: for ever)")
	fl.Float64Var(&f.cpus, "max-cpus", 0, "most cpus that a request may ask for (0: any)")
	fl.Int64Var(&f.memoryMB, "max-memory-mb", 0, "most memory that a request may ask for (0: any)")
}

// backends opens the sandbox backends by name; without names, those that work.
func backends(ctx context.Context, names []string, state string) ([]sandboxes.Backend, error) {
	helper, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dockerBackend, err := docker.New(helper, state)
	if err != nil {
		return nil, err
	}
	all := []sandboxes.Backend{&local.Backend{Helper: helper, StateDir: state}, dockerBackend}
	var out []sandboxes.Backend
	var problems []error
	for _, name := range names {
		if name != "local" && name != "docker" {
			return nil, usage("sandbox: %q is not known: want local or docker", name)
		}
	}
	for _, b := range all {
		if len(names) > 0 && !slices.Contains(names, b.Name()) {
			continue
		}
		if err := b.Check(ctx); err != nil {
			if len(names) > 0 {
				return nil, fmt.Errorf("the %s sandbox: %w", b.Name(), err)
			}
			problems = append(problems, fmt.Errorf("%s: %w", b.Name(), err))
			continue
		}
		out = append(out, b)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no sandbox works here: %w", errors.Join(problems...))
	}
	return out, nil
}

// start makes a worker on a broker that is connected as one.
func (f *workerFlags) start(ctx context.Context, b *broker.Broker, wid string, timing broker.Timing, hurry <-chan struct{}, log zerolog.Logger) (*worker.Worker, *broker.WorkerSide, error) {
	list, err := backends(ctx, splitList(f.sandboxes), f.state)
	if err != nil {
		return nil, nil, err
	}
	c := worker.Config{
		Slots: f.slots, Backends: list, Agents: agents.All(), Cache: agents.Cache{Dir: f.agents}, Grace: f.grace, Hurry: hurry, Log: log,
		Caps: worker.Caps{Networks: splitList(f.networks), CPUs: f.cpus, MemoryBytes: f.memoryMB << 20},
	}
	side, err := b.WorkerSide(broker.WorkerConfig{
		Worker: wid, Instance: randomHex(6), Version: version, Slots: f.slots, Offer: c.Offer, Timing: timing, Retention: f.retention,
	})
	if err != nil {
		return nil, nil, err
	}
	w, err := worker.New(c, side)
	if err != nil {
		side.Close()
		return nil, nil, err
	}
	return w, side, nil
}

// serve sets up the streams, tells that the worker is ready, and runs it until
// the context ends.
func (f *workerFlags) serve(ctx context.Context, b *broker.Broker, wid string, hurry <-chan struct{}, log zerolog.Logger, ready func()) error {
	if err := b.Setup(ctx, broker.StreamsConfig{Replicas: f.replicas}); err != nil {
		return err
	}
	w, side, err := f.start(ctx, b, wid, broker.DefaultTiming(), hurry, log)
	if err != nil {
		return err
	}
	defer side.Close()
	ready()
	return w.Run(ctx)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// identity is the worker's stable name, kept in its state directory and held
// by a lock: two workers never share one.
func identity(state string) (wid string, release func(), err error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return "", nil, fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(state, "worker.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return "", nil, fmt.Errorf("another worker uses the state directory %s; give this one its own with --state", state)
	}
	file := filepath.Join(state, "worker.id")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		host, _ := os.Hostname()
		data = []byte(token(host) + "-" + randomHex(4))
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		lock.Close()
		return "", nil, fmt.Errorf("read the worker's name: %w", err)
	}
	return strings.TrimSpace(string(data)), func() { lock.Close() }, nil
}

// token keeps what may stand in a worker's name.
func token(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return -1
	}, s)
	return cmp.Or(s[:min(len(s), 20)], "worker")
}

func workerCommand(hurry <-chan struct{}) *cobra.Command {
	var nf natsFlags
	var wf workerFlags
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Take rollouts from NATS and run them until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			wid, release, err := identity(wf.state)
			if err != nil {
				return err
			}
			defer release()
			log := newLogger(cmd, zerolog.InfoLevel)
			b, err := nf.dial(ctx, "worker", wid, log)
			if err != nil {
				return err
			}
			defer b.Close()
			return wf.serve(ctx, b, wid, hurry, log, func() { log.Info().Str("worker", wid).Int("slots", wf.slots).Msg("worker is ready") })
		},
	}
	nf.add(cmd, defaultURL)
	wf.add(cmd)
	return cmd
}

func upCommand(hurry <-chan struct{}) *cobra.Command {
	var wf workerFlags
	var port int
	var trainers string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start NATS and a worker in one process",
		Long:  "Start a NATS server on 127.0.0.1 with JetStream and a worker in one process. Credentials are generated into the state directory.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			wid, release, err := identity(wf.state)
			if err != nil {
				return err
			}
			defer release()
			log := newLogger(cmd, zerolog.InfoLevel)
			srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: wf.state, Port: port, Trainers: splitList(trainers), Log: log})
			if err != nil {
				return err
			}
			defer srv.Shutdown()
			nf := natsFlags{srv.URL(), srv.WorkerCreds()}
			b, err := nf.dial(ctx, "worker", wid, log)
			if err != nil {
				return err
			}
			defer b.Close()
			return wf.serve(ctx, b, wid, hurry, log, func() {
				out := cmd.OutOrStdout()
				fmt.Fprintf(out, "NATS     %s\n", srv.URL())
				for _, tid := range splitList(trainers) {
					fmt.Fprintf(out, "trainer  %s: --nats %s --creds %s --name %s\n", tid, srv.URL(), srv.TrainerCreds(tid), tid)
				}
				fmt.Fprintf(out, "watch    turngate tap --nats %s --creds %s\n", srv.URL(), srv.OpsCreds())
				fmt.Fprintf(out, "workers  turngate worker --nats %s --creds %s --state DIR\n", srv.URL(), srv.WorkerCreds())
				log.Info().Str("worker", wid).Int("slots", wf.slots).Msg("NATS and a worker are ready")
			})
		},
	}
	wf.add(cmd)
	cmd.Flags().IntVar(&port, "port", 4222, "port of NATS on 127.0.0.1")
	cmd.Flags().StringVar(&trainers, "trainers", "local", "names of trainers to make credentials for, comma-separated")
	return cmd
}
