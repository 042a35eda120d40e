package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/traces/export"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// workerFlags are the flags for a worker on this host.
type workerFlags struct {
	room            roomFlags
	sandboxes       string
	allowNetwork    string
	allowShell      bool
	state           string
	agents          string
	grace           time.Duration
	maxCPUs         float64
	maxMemoryMB     int64
	maxDiskMB       int64
	maxPids         int64
	maxSnapshotMB   int64
	bundleCacheMB   int64
	replicas        int
	retention       time.Duration
	trainers        trainerFlags
	upstreams       string
	conversationsMB int64
	requestsMB      int64
	images          imageFlags
	sideCarSubnets  string
	monitor         metricsFlags
	traceContent    bool
	person          rollout.Person // nil: no person is at this worker's terminal
	reach           *reach.Host    // serves the sandboxes to commands of the user; nil: none does
	keep            rollout.Keep
	backends        backendFlags
	docker          dockerFlags
	machines        machineFlags
	patience        patience // with a cluster
}

// defaultCopyMB bounds the files of one snapshot.
const defaultCopyMB = 8 << 10

// check returns all errors in these flags.
func (f *workerFlags) check() error {
	wrong := []error{
		atLeast("grace", f.grace, 0), atLeast("retention", f.retention, 0), atLeast("conversations-mb", f.conversationsMB, 1), atLeast("requests-mb", f.requestsMB, 1),
		atLeast("max-cpus", f.maxCPUs, 0), atLeast("max-memory-mb", f.maxMemoryMB, 0), atLeast("max-disk-mb", f.maxDiskMB, 0), atLeast("max-pids", f.maxPids, 0), atLeast("max-snapshot-mb", f.maxSnapshotMB, -1), atLeast("bundle-cache-mb", f.bundleCacheMB, 0), f.images.check(), f.trainers.check(), f.monitor.check("metrics"), f.backends.check(), f.docker.check(), f.machines.check(),
	}
	if f.replicas != 0 && f.replicas != 1 && f.replicas != 3 {
		wrong = append(wrong, fmt.Errorf("--replicas: %d is not valid: want 1 or 3", f.replicas))
	}
	for _, name := range splitList(f.sandboxes) {
		wrong = append(wrong, oneOf("sandboxes", name, backends.Names()...))
	}
	for _, name := range splitList(f.allowNetwork) {
		wrong = append(wrong, oneOf("allow-network", name, schema.NetworkOpen, schema.NetworkAllowlist))
	}
	if f.upstreams != "" {
		_, err := loadUpstreams(f.upstreams)
		wrong = append(wrong, err)
	}
	return errors.Join(append(wrong, f.room.check()...)...)
}

func (f *workerFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	f.room.add(fl)
	fl.StringVar(&f.sandboxes, "sandboxes", "", "sandbox backends to offer, comma-separated: "+strings.Join(backends.Names(), ", ")+" (default: all that work on this host)")
	fl.StringVar(&f.allowNetwork, "allow-network", "", "networks that requests may ask for besides none, comma-separated: open, allowlist")
	fl.BoolVar(&f.allowShell, "allow-shell", false, "let operators run commands in the sandboxes of running rollouts: turngate rollout shell")
	fl.StringVar(&f.state, "state", stateDir(), "folder for the worker's state")
	fl.StringVar(&f.agents, "agents", cacheDir(), "folder of installed agents")
	fl.DurationVar(&f.grace, "grace", 30*time.Second, "how long running rollouts may go on after SIGTERM")
	fl.IntVar(&f.replicas, "replicas", 0, "copies of every stream: 1, or 3 on a cluster (default: as they are; 1 when they are made)")
	fl.DurationVar(&f.retention, "retention", 72*time.Hour, "how long finished rollouts and their artifacts are kept (0: for ever)")
	f.trainers.add(fl)
	fl.Int64Var(&f.conversationsMB, "conversations-mb", 1024, "memory for the conversations of running rollouts; beyond it each call is read in full")
	fl.Int64Var(&f.requestsMB, "requests-mb", 512, "memory for the requests of agents while they are read and answered; beyond it they get 413 or 429")
	fl.StringVar(&f.upstreams, "upstreams", "", "file of upstreams that requests of mode transparent_proxy or black_box can name")
	fl.Float64Var(&f.maxCPUs, "max-cpus", 0, "most cpus that a request may ask for, and the default of a request that names none (0: any)")
	fl.Int64Var(&f.maxMemoryMB, "max-memory-mb", 0, "most memory that a request may ask for, and the default of a request that names none (0: any)")
	fl.Int64Var(&f.maxSnapshotMB, "max-snapshot-mb", defaultCopyMB, "most files that a setup may write for a snapshot of its group; above it each rollout runs its own setup (0: any; -1: no snapshots)")
	fl.Int64Var(&f.bundleCacheMB, "bundle-cache-mb", 16<<10, "disk for the unpacked bundles of tasks in --state; those in use are not removed (0: none else is kept)")
	fl.Int64Var(&f.maxDiskMB, "max-disk-mb", 0, "most disk that a request may ask for, and the default of a request that names none (0: any, and 32 GiB in docker, half of the memory in local)")
	fl.Int64Var(&f.maxPids, "max-pids", 0, "most processes that a request may ask for, and the default of a request that names none (0: any, and 4096)")
	f.images.add(fl)
	f.monitor.add(fl)
	fl.BoolVar(&f.traceContent, "trace-content", false, "add the texts of model calls and tools to the spans that OTEL_EXPORTER_OTLP_ENDPOINT asks for")
	f.backends.add(fl, "")
	f.backends.prices.add(fl, "")
	f.docker.add(fl)
	f.machines.add(fl)
	fl.StringVar(&f.sideCarSubnets, "side-car-subnets", sandboxes.DefaultSubnets, "addresses for the networks of tasks with side-cars")
}

// rehearse tries the sandboxes before the worker that runs is asked to retire.
func (f *workerFlags) rehearse(ctx context.Context, b *broker.Broker, wid string, log zerolog.Logger) error {
	host, leave, err := f.host(b, wid)
	if err != nil {
		return err
	}
	defer leave()
	_, err = f.patience.open(ctx, splitList(f.sandboxes), host, log)
	return err
}

// host returns the settings of the sandbox backends. The caller calls leave.
func (f *workerFlags) host(b *broker.Broker, wid string) (host sandboxes.Host, leave func(), err error) {
	if host, err = f.images.host(f.state, f.maxCPUs, f.maxMemoryMB); err != nil {
		return host, nil, err
	}
	if err := f.backends.set(&host); err != nil {
		return host, nil, err
	}
	if host.Docker, err = f.docker.settings(); err != nil {
		return host, nil, usageOf(err)
	}
	if f.sideCarSubnets != "" {
		if host.Subnets, err = netip.ParsePrefix(f.sideCarSubnets); err != nil {
			return host, nil, usage("--side-car-subnets: %q is not valid: want a range such as %s", f.sideCarSubnets, sandboxes.DefaultSubnets)
		}
	}
	host.Machines, leave, err = f.machines.settings(b, wid, f.sandboxes)
	return host, leave, err
}

// start makes a worker, to be released after use. b is connected as this worker, process is this
// one among the worker's processes, or nil, and m shows its metrics; nil: the process has none.
func (f *workerFlags) start(ctx context.Context, b *broker.Broker, process *handover.Process, who identity, timing broker.Timing, hurry <-chan struct{}, m *monitor, log zerolog.Logger) (_ *worker.Worker, release func(), err error) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit((f.conversationsMB + f.requestsMB + 32) << 20) // the limit includes garbage
	}
	if err := (agents.Cache{Dir: f.agents}).Check(); err != nil {
		return nil, nil, err
	}
	host, leaveMachines, err := f.host(b, who.name)
	if err != nil {
		return nil, nil, err
	}
	host.Warn = func(line string) { log.Warn().Msg(line) }
	defer func() {
		if err != nil {
			leaveMachines()
		}
	}()
	list, err := f.patience.open(ctx, splitList(f.sandboxes), host, log)
	if err != nil {
		return nil, nil, err
	}
	upstreams, err := loadUpstreams(f.upstreams)
	if err != nil {
		return nil, nil, err
	}
	prices, err := f.backends.prices.prices()
	if err != nil {
		return nil, nil, err
	}
	cache, err := bundles.New(filepath.Join(f.state, "bundles"), f.bundleCacheMB<<20, log)
	if err != nil {
		return nil, nil, err
	}
	files, err := spool.Open(filepath.Join(f.state, "spool"))
	if err != nil {
		return nil, nil, err
	}
	exported, err := export.FromEnv(ctx, serviceInstance(who.name, process.Place()), version, log)
	if err != nil {
		return nil, nil, usageOf(err)
	}
	defer func() { //nolint:contextcheck // Close has a limit of its own
		if err != nil {
			exported.Close()
		}
	}()
	slots, room := f.room.room(f.state, process.Others, cache.RemoveUnused, log)
	c := worker.Config{
		Owner: who.owner, Process: process, Retired: m.close, Slots: slots, Room: room, Backends: list, Agents: agents.All(), Cache: agents.Cache{Dir: f.agents}, Grace: f.grace, Hurry: hurry, Log: log, Upstreams: upstreams, Memory: gate.NewMemory(f.conversationsMB<<20, f.requestsMB<<20),
		Caps:   place.Caps{Networks: splitList(f.allowNetwork), GPUs: host.Docker.MostGPUs(), CPUs: f.maxCPUs, MemoryBytes: f.maxMemoryMB << 20, DiskBytes: f.maxDiskMB << 20, Pids: f.maxPids},
		Prices: prices, MaxSnapshot: f.maxSnapshotMB << 20, Bundles: cache, Spool: files, Metrics: m.rollouts(), Reach: f.reach, Keep: f.keep, Traces: exported.Tracer(who.name), TraceContent: f.traceContent, CallMetrics: exported.CallMetrics(),
	}
	c.Health = worker.NewHealth(list, log)
	c.Warm = warmImages(ctx, list)
	if f.allowShell && c.Reach == nil {
		c.Reach = reach.Alone()
	}
	if f.person != nil {
		c.Person, c.Agents = f.person, append(c.Agents, agents.Person())
	}
	side, err := queue.NewWorker(b, queue.WorkerConfig{
		Worker: who.name, Instance: randomHex(6), Version: version, Slots: slots, Shells: f.allowShell, Offer: c.Offer, Load: machine.Load, Full: room.Full, Lives: process.Lives, Timing: timing, Retention: f.retention, Metrics: m.queue(), Traces: c.Traces,
	})
	if err != nil {
		return nil, nil, err
	}
	calls, err := modelcall.NewClient(b, who.name, side.Instance())
	if err != nil {
		side.Close()
		return nil, nil, err
	}
	release = func() { leaveMachines(); calls.Close(); side.Close(); exported.Close() } //nolint:contextcheck // as above
	w, err := worker.New(c, side, calls)
	if err != nil {
		calls.Close()
		side.Close()
		return nil, nil, err
	}
	if f.allowShell {
		shells, err := machines.ServeShells(ctx, b, who.name, line.DefaultTiming(), w.Shell, w.Elsewhere)
		if err != nil {
			release()
			return nil, nil, err
		}
		others := release
		release = func() { shells.Close(); others() }
	}
	m.watchWorker(w.State)
	m.ready(w.Ready)
	return w, release, nil
}

// serve sets up the streams, calls ready, and runs the worker until the context
// ends.
func (f *workerFlags) serve(ctx context.Context, b *broker.Broker, process *handover.Process, who identity, hurry <-chan struct{}, m *monitor, log zerolog.Logger, ready func()) error {
	if err := b.Streams.SetupWhenThere(ctx, broker.StreamsConfig{Replicas: f.replicas, Trainer: f.trainers.settings(f.retention)}); err != nil {
		return err
	}
	w, release, err := f.start(ctx, b, process, who, broker.DefaultTiming(), hurry, m, log)
	if err != nil {
		return err
	}
	defer release()
	ready()
	defer underSystemd(ctx, w.Ready, log)()
	return w.Run(ctx)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// serviceInstance names the process of a worker in a place for OpenTelemetry: processes that
// live at the same time have different names. No worker has a dot in its name.
func serviceInstance(worker string, place int) string {
	if place == 0 {
		return worker
	}
	return worker + "." + strconv.Itoa(place)
}

// identity has the stable names of a worker, which are stored in its state directory.
type identity struct {
	name  string
	owner string // of its sandboxes
}

// identify reads the names in a state directory. A new one gets the name want, or one made of
// the host's name. The caller has a place in the directory.
func identify(state, want string) (identity, error) {
	file := filepath.Join(state, "worker.id")
	if err := owned.Check(file); err != nil {
		return identity{}, fmt.Errorf("the worker's state: %w", err)
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		host, _ := os.Hostname()
		if err = owned.Create(file, []byte(cmp.Or(want, token(host)+"-"+randomHex(4)))); err == nil || errors.Is(err, os.ErrExist) { // of a process that starts beside this one
			data, err = os.ReadFile(file)
		}
	}
	if err != nil {
		return identity{}, fmt.Errorf("read the worker's name: %w", err)
	}
	who := identity{name: strings.TrimSpace(string(data))}
	if want != "" && who.name != want {
		return identity{}, usage("--state: %s belongs to the worker %s: give %s its own", state, who.name, want)
	}
	who.owner, err = worker.OwnerOf(who.name, state)
	return who, err
}

// token removes the characters that a worker's name may not have, and shortens
// the text.
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
	wf := workerFlags{patience: workerPatience()}
	var name string
	var follow bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Take rollouts from NATS and run them until SIGTERM",
		Args:  cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			return usageOf(wf.check(), flagOf("name", checkWorkerName(name)))
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			log := newLogger(cmd, zerolog.InfoLevel)
			process, err := handover.Join(wf.state)
			if err != nil {
				return err
			}
			defer process.Leave()
			err = process.Begin()
			follows := follow && errors.Is(err, handover.ErrBusy)
			if errors.Is(err, handover.ErrBusy) && !follow {
				return fmt.Errorf("%w %s: give this one its own with --state, or let it follow that one with --handover", err, wf.state)
			} else if err != nil && !follows {
				return err
			}
			who, err := identify(wf.state, cmp.Or(name, broker.WorkerOf(nf.creds)))
			if err != nil {
				return err
			}
			b, err := nf.dial(ctx, "worker", who.name, log)
			if err != nil {
				return err
			}
			defer b.Close()
			if follows {
				if err := wf.rehearse(ctx, b, who.name, log); err != nil {
					return fmt.Errorf("the worker that runs goes on: %w", err)
				}
				log.Info().Msg("waiting for the turn of the worker that runs")
				if err := process.Follow(ctx); err != nil {
					return err
				}
			}
			m, err := wf.monitor.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			if err := process.Listen(); err != nil {
				log.Warn().Err(err).Msg("no other process can follow this one with --handover")
			}
			return wf.serve(ctx, b, process, who, hurry, m, log, func() { log.Info().Str("worker", who.name).Stringer("slots", &wf.room.slots).Msg("worker is ready") })
		},
	}
	nf.add(cmd, defaultURL)
	wf.add(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the worker (default: the one in --state, or of a credential worker-NAME.nk)")
	cmd.Flags().BoolVar(&follow, "handover", false, "follow the worker that uses --state, if there is one: it takes no more rollouts, and ends when those that it runs have ended")
	cmd.AddCommand(workerListCommand(), accessCommand(workerAccess, true), accessCommand(workerAccess, false))
	return cmd
}

func workerListCommand() *cobra.Command {
	var nf natsFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the present workers and their offers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := nf.dial(cmd.Context(), "ops", "ops", logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			all, err := operate.On(b, "").Workers(cmd.Context())
			if err != nil {
				return err
			}
			if !isTable(output) {
				return printList(cmd.OutOrStdout(), output, all)
			}
			t := newList(cmd.OutOrStdout(), output, "WORKER", "VERSION", "RUNNING", "SLOTS", "BACKENDS", "AGENTS", "NETWORKS", "STATE")
			t.spare, t.cut = []string{"NETWORKS", "VERSION"}, []string{"BACKENDS", "AGENTS"}
			for _, p := range all {
				state := "ready"
				switch {
				case p.Draining:
					state = "draining"
				case p.Full != "":
					state = "full: " + oneLine(p.Full, 120)
				}
				networks := append([]string{schema.NetworkNone}, p.Offer.Networks...)
				t.row(p.Worker, oneLine(p.Version, 30), len(p.Running), p.Slots,
					oneLine(strings.Join(p.Offer.Backends, ","), 60), oneLine(strings.Join(p.Offer.Agents, ","), 80), oneLine(strings.Join(networks, ","), 40), state)
			}
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	addListOutput(cmd.Flags(), &output)
	return cmd
}
