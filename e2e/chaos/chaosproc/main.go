// Command chaosproc is one process of a chaos run: a worker with dummy
// sandboxes, or a trainer. The checker of the invariants uses nothing that a
// worker says about itself: the agents and the trainers append to files of their
// own, and the run looks at the processes, their files, the wire and the streams.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/e2e/chaos/clock"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
)

// options are the flags of every kind of process.
type options struct {
	url, creds, name, dir, helper string
	debug, census, agent          string
	speed, slots                  int
	rollouts, calls, replicas     int
	wave                          int
	harmless                      bool
	cancelAfter, slow, delay      time.Duration
	prefix                        string
	local                         float64
}

func main() {
	var o options
	kind := os.Args[1]
	f := flag.NewFlagSet(kind, flag.ExitOnError)
	f.StringVar(&o.url, "nats", "", "")
	f.StringVar(&o.creds, "creds", "", "")
	f.StringVar(&o.name, "name", "", "")
	f.StringVar(&o.dir, "dir", "", "folder for records")
	f.StringVar(&o.debug, "debug", "", "abstract socket for the run's questions")
	f.StringVar(&o.census, "census", "", "abstract socket of the run, to which agents connect")
	f.StringVar(&o.helper, "helper", "", "turngate binary, for local sandboxes")
	f.StringVar(&o.prefix, "prefix", "r", "of the ids")
	f.StringVar(&o.agent, "agent", "", "of each rollout: agent or stubborn")
	f.IntVar(&o.speed, "speed", 20, "how many times faster than the protocol's own durations")
	f.IntVar(&o.slots, "slots", 4, "")
	f.IntVar(&o.rollouts, "rollouts", 1<<30, "how many to submit")
	f.IntVar(&o.wave, "wave", 0, "submit so many rollouts without a pause, and go on when all have ended and a file wave-N is there")
	f.BoolVar(&o.harmless, "harmless", false, "no rollout kills its worker")
	f.IntVar(&o.calls, "calls", 0, "model calls of each rollout (0: one to four)")
	f.DurationVar(&o.slow, "slow", 0, "how long every second answer takes, the first try of which is a fault")
	f.DurationVar(&o.delay, "delay", 0, "of each request")
	f.DurationVar(&o.cancelAfter, "cancel-after", 0, "cancel everything then")
	f.IntVar(&o.replicas, "replicas", 1, "of the streams")
	f.Float64Var(&o.local, "local", 0, "share of rollouts in local sandboxes")
	if err := f.Parse(os.Args[2:]); err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	zerolog.TimeFieldFormat = zerolog.TimeFormatUnixMs
	zerolog.TimestampFunc = time.Now
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	d, err := serveDebug(o.debug)
	if err == nil && os.Getenv(envClock) != "" {
		err = setClock(os.Getenv(envClock))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch kind {
	case "worker":
		err = runWorker(ctx, o, d, log)
	case "trainer":
		err = runTrainer(ctx, o, log)
	default:
		err = fmt.Errorf("%q is no kind of process", kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// envClock is the environment variable with the error of this process's wall
// clock when it starts, as a duration.
const envClock = "CHAOS_CLOCK"

// setClock makes the wall clock wrong, where that is supported.
func setClock(by string) error {
	d, err := time.ParseDuration(by)
	if err != nil {
		return err
	}
	if err := clock.Step(d); !errors.Is(err, clock.ErrUnsupported) {
		return err
	}
	return nil
}

// dial connects to the server and waits until it is up.
func dial(ctx context.Context, o options, inbox string, log zerolog.Logger) (*broker.Broker, error) {
	for {
		op, cancel := context.WithTimeout(ctx, 5*time.Second)
		b, err := broker.Dial(op, broker.Config{URL: o.url, Creds: o.creds, Name: o.name, Inbox: inbox, Log: log})
		cancel()
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool { return wire.Pause(ctx, d) == nil }

// record appends lines to a file that outlives the process.
type record struct {
	mu   sync.Mutex
	file *os.File
}

func openRecord(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &record{file: f}, err
}

func (r *record) write(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.file.Write(append(data, '\n')); err != nil {
		panic(err)
	}
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
