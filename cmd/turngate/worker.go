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
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/docker"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker"
	"github.com/turngate/turngate/worker/gate"
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
	upstreams string
	memory    int64
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
	fl.DurationVar(&f.retention, "retention", 72*time.Hour, "how long finished rollouts and their artifacts are kept (0: for ever)")
	fl.Int64Var(&f.memory, "conversations-mb", 1024, "memory for the conversations of running rollouts; beyond it each call is read in full")
	fl.StringVar(&f.upstreams, "upstreams", "", "file of engines that requests of mode transparent_proxy or black_box can name")
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
	engines, err := loadUpstreams(f.upstreams)
	if err != nil {
		return nil, nil, err
	}
	c := worker.Config{
		Slots: f.slots, Backends: list, Agents: agents.All(), Cache: agents.Cache{Dir: f.agents}, Grace: f.grace, Hurry: hurry, Log: log, Upstreams: engines, Memory: gate.NewMemory(f.memory << 20),
		Caps: worker.Caps{Networks: splitList(f.networks), CPUs: f.cpus, MemoryBytes: f.memoryMB << 20},
	}
	c.Warm = warmImages(ctx, list)
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

// warmImages looks every minute, until the context ends, which images the
// backends have.
func warmImages(ctx context.Context, list []sandboxes.Backend) func() []string {
	const every, most = time.Minute, 200
	var found atomic.Pointer[[]string]
	for _, b := range list {
		lister, ok := b.(*docker.Backend)
		if !ok {
			continue
		}
		go func() {
			for tick := time.NewTicker(every); ctx.Err() == nil; {
				op, cancel := context.WithTimeout(ctx, 10*time.Second)
				if images, err := lister.Images(op); err == nil {
					images = images[:min(len(images), most)]
					found.Store(&images)
				}
				cancel()
				select {
				case <-tick.C:
				case <-ctx.Done():
					tick.Stop()
				}
			}
		}()
	}
	return func() []string {
		if images := found.Load(); images != nil {
			return *images
		}
		return nil
	}
}

// serve sets up the streams, tells that the worker is ready, and runs it until
// the context ends.
func (f *workerFlags) serve(ctx context.Context, b *broker.Broker, wid string, hurry <-chan struct{}, log zerolog.Logger, ready func()) error {
	if err := b.SetupWhenThere(ctx, broker.StreamsConfig{Replicas: f.replicas}); err != nil {
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
	cmd.AddCommand(workerListCommand())
	return cmd
}

func workerListCommand() *cobra.Command {
	var nf natsFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the workers that are there, and what they offer",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usage("-o: %q is not valid: want table or json", output)
			}
			b, err := nf.dial(cmd.Context(), "ops", "ops", logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			all, err := b.Workers(cmd.Context())
			if err != nil {
				return err
			}
			slices.SortFunc(all, func(a, b schema.Presence) int { return cmp.Compare(a.Worker, b.Worker) })
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "WORKER\tVERSION\tRUNNING\tSLOTS\tBACKENDS\tAGENTS\tNETWORKS\tSTATE")
			for _, p := range all {
				state := "ready"
				if p.Draining {
					state = "draining"
				}
				networks := append([]string{schema.NetworkNone}, p.Offer.Networks...)
				fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", p.Worker, oneLine(p.Version, 30), len(p.Running), p.Slots,
					oneLine(strings.Join(p.Offer.Backends, ","), 60), oneLine(strings.Join(p.Offer.Agents, ","), 80), oneLine(strings.Join(networks, ","), 40), state)
			}
			return t.Flush()
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}
