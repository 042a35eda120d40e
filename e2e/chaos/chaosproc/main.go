// Command chaosproc is one process of a chaos run: a worker with dummy
// sandboxes, or a trainer. Everything that an invariant is checked with is
// written by what a worker does not control: the sandboxes, the agents in them
// and the trainer append to files of their own.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/crash"
)

// options are those of every kind of process.
type options struct {
	url, creds, name, dir, helper string
	speed, slots                  int
	rollouts, calls, replicas     int
	wave                          int
	harmless                      bool
	cancelAfter, slow             time.Duration
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
	f.StringVar(&o.helper, "helper", "", "turngate binary, for local sandboxes")
	f.StringVar(&o.prefix, "prefix", "r", "of the ids")
	f.IntVar(&o.speed, "speed", 20, "how many times faster than the protocol's own durations")
	f.IntVar(&o.slots, "slots", 4, "")
	f.IntVar(&o.rollouts, "rollouts", 1<<30, "how many to submit")
	f.IntVar(&o.wave, "wave", 0, "submit so many rollouts without a pause, and go on when all have ended, this process has told its footprint, and a file wave-N is there")
	f.BoolVar(&o.harmless, "harmless", false, "no rollout kills its worker")
	f.IntVar(&o.calls, "calls", 0, "model calls of each rollout (0: one to four)")
	f.DurationVar(&o.slow, "slow", 0, "how long every second answer takes, the first try of which is a fault")
	f.DurationVar(&o.cancelAfter, "cancel-after", 0, "cancel everything then")
	f.IntVar(&o.replicas, "replicas", 1, "of the streams")
	f.Float64Var(&o.local, "local", 0, "share of rollouts in local sandboxes")
	if err := f.Parse(os.Args[2:]); err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	zerolog.TimeFieldFormat = zerolog.TimeFormatUnixMs
	zerolog.TimestampFunc = func() time.Time { return time.Now().Add(crash.Skew()) }
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	go tellFootprints(ctx)
	var err error
	switch kind {
	case "worker":
		err = runWorker(ctx, o, log)
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

// dial waits for the server.
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

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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
