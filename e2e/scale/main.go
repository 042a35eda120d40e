// Command scale measures how much one server or three carry, and simulates a day of
// many workers. Servers, workers and trainers are processes of their own, except the
// workers of a day, which share this one.
//
//	go run ./e2e/scale idle -rollouts 1000     rollouts that wait for their model
//	go run ./e2e/scale servers -servers 3      connections, streams and empty rollouts
//	go run ./e2e/scale rates -servers 3        raw messages and model calls in a second
//	go run ./e2e/scale day -workers 1000       bursts, an autoscaler, and workers that are lost
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/broker"
)

// options are the flags of all kinds of runs.
type options struct {
	turngate string
	servers  int
	relaxed  bool
	rollouts int
	workers  int
	slots    int
	length   time.Duration
	busy     time.Duration
	speed    int
	loss     float64
	waves    int
	seed     uint64
	csv, svg string
	process  process // of a worker or a trainer
}

// process is how a worker or a trainer of a run connects, and the folder of its files,
// which the run removes.
type process struct{ url, creds, name, dir string }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "scale: want idle, servers, rates or day")
		os.Exit(2)
	}
	var o options
	f := flag.NewFlagSet("scale", flag.ExitOnError)
	f.StringVar(&o.turngate, "turngate", "bin/turngate", "turngate's program")
	f.IntVar(&o.servers, "servers", 1, "NATS servers: 1 or 3")
	f.BoolVar(&o.relaxed, "relaxed-sync", false, "servers confirm writes before they are on disk")
	f.IntVar(&o.rollouts, "rollouts", 1000, "rollouts that wait at once, or empty rollouts")
	f.IntVar(&o.workers, "workers", 1000, "largest number of workers")
	f.IntVar(&o.slots, "slots", 1, "slots of a worker of a day")
	f.DurationVar(&o.length, "length", 8*time.Minute, "time of a day")
	f.DurationVar(&o.busy, "busy", 10*time.Second, "mean time of a rollout of a day")
	f.IntVar(&o.speed, "speed", 5, "the protocol's durations are divided by this in a day")
	f.Float64Var(&o.loss, "loss", 0.1, "share of the workers that are lost at once")
	f.IntVar(&o.waves, "waves", 3, "how often workers are lost in a day")
	f.Uint64Var(&o.seed, "seed", 1, "of a day")
	f.StringVar(&o.csv, "csv", "day.csv", "file with the numbers of a day")
	f.StringVar(&o.svg, "svg", "day.svg", "file with the plot of a day")
	f.StringVar(&o.process.url, "url", "", "of the servers, for a process that this program starts")
	f.StringVar(&o.process.creds, "creds", "", "credential, for a process that this program starts")
	f.StringVar(&o.process.name, "name", "", "name, for a process that this program starts")
	f.StringVar(&o.process.dir, "dir", "", "folder for files, for a process that this program starts")
	_ = f.Parse(os.Args[2:])
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kinds := map[string]func(context.Context, options) error{"idle": idle, "servers": capacity, "rates": rates, "day": day, "worker": idleWorker, "trainer": idleTrainer, "answerer": answererTrainer}
	run, ok := kinds[os.Args[1]]
	err := fmt.Errorf("%q is no kind of run: want idle, servers, rates or day", os.Args[1])
	if ok {
		err = o.check()
	}
	if ok && err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func (o options) check() error {
	switch {
	case o.servers != 1 && o.servers != 3:
		return fmt.Errorf("-servers: %d is not valid: want 1 or 3", o.servers)
	case min(o.rollouts, o.workers, o.slots, o.speed) < 1:
		return errors.New("-rollouts, -workers, -slots, -speed: want numbers from 1 on")
	case o.length < 10*time.Second || o.busy < time.Millisecond:
		return errors.New("-length: want at least 10s; -busy: at least 1ms")
	case o.loss < 0 || o.loss >= 1:
		return fmt.Errorf("-loss: %v is not valid: want a share from 0 to below 1", o.loss)
	}
	return nil
}

// timing has the durations of a day.
func (o options) timing() broker.Timing { return broker.DefaultTiming().Faster(o.speed) }
