package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

// Rules of a day. An hour is a 24th of its length.
const (
	fewest   = 10          // workers that always run
	groupOf  = 8           // rollouts that are submitted together
	step     = time.Second // interval of the autoscaler
	bootTime = 3 * step    // from the wish for a worker until it takes rollouts
	coolDown = 10 * step   // time with too many workers after which some leave
)

// day simulates a day: a trainer submits rollouts, few at night and many in bursts, an
// autoscaler runs as many workers as the queue needs, and at some times a share of the
// workers is lost without a word. It writes numbers and a plot, and fails if a rollout
// has no result or more than one after all workers have ended.
func day(ctx context.Context, o options) error {
	s, err := startSystem(ctx, o, o.maxStarts())
	if err != nil {
		return err
	}
	defer s.stop()
	admin, err := s.dial(ctx, broker.RoleAdmin, broker.RoleAdmin, s.keys.AdminCreds())
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := setUp(ctx, admin, broker.StreamsConfig{Replicas: o.servers, Timing: o.timing()}, trainerName); err != nil {
		return err
	}
	b, err := s.dial(ctx, broker.RoleTrainer, trainerName, s.keys.TrainerCreds(trainerName))
	if err != nil {
		return err
	}
	defer b.Close()
	side, err := queue.NewTrainer(b, trainerName)
	if err != nil {
		return err
	}
	ops, err := s.dial(ctx, broker.RoleOps, broker.RoleOps, s.keys.OpsCreds())
	if err != nil {
		return err
	}
	defer ops.Close()

	d := &simulation{options: o, ledger: newLedger(), rng: rand.New(rand.NewPCG(o.seed, 0)), trainer: side, backlogs: queue.NewBacklogs(ops)}
	d.fleet = newFleet(ctx, o, s, d.ledger)
	defer d.fleet.end()
	if err := d.run(ctx); err != nil {
		return err
	}
	used, err := s.usage()
	if err != nil {
		return err
	}
	// An attempt that was taken over may still run, and must not add a result.
	d.fleet.drain()
	if _, err := d.trainer.Results.From(ctx, d.read, d.ledger.ended); err != nil {
		return err
	}
	report := d.ledger.report()
	fmt.Printf("%d workers at most, %d slots each; %d servers took %d MB at the end and %.0f %% of a core\n", d.fleet.most, o.slots, o.servers, used.resident>>20, 100*used.cpu.Seconds()/time.Since(d.begun).Seconds())
	fmt.Print(report.text)
	if err := errors.Join(writeCSV(o.csv, d.rows), os.WriteFile(o.svg, plot(d.rows, d.lossHours()), 0o644)); err != nil { //nolint:gosec // figures for everybody
		return err
	}
	return report.err
}

// maxStarts is the number of workers of a day that get a credential. Each start of a
// worker has a name of its own, since a lost one never comes back.
func (o options) maxStarts() int { return 4 * o.workers }

// simulation is a day that runs.
type simulation struct {
	options
	ledger   *ledger
	fleet    *fleet
	rng      *rand.Rand
	trainer  *queue.Trainer
	backlogs *queue.Backlogs

	begun     time.Time
	submitted int
	due       float64 // rollouts that are due and not submitted
	read      uint64  // sequence of the next result
	tooMany   time.Time
	rows      []row
}

// row has the numbers at one time of a day.
type row struct {
	hour             float64
	submitted, ended int
	queued, taken    uint64
	wanted, running  int
	lost, takeovers  int
	p50, p99         float64 // waits of rollouts that began since the row before, in seconds; NaN: none began
}

// run plays the day, and waits until every rollout has a result.
func (d *simulation) run(ctx context.Context) error {
	d.begun, d.read = time.Now(), 1
	tick := time.NewTicker(step / 10)
	defer tick.Stop()
	waves, scaled := 0, time.Time{}
	last := d.begun
	for {
		var now time.Time
		select {
		case now = <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		at := now.Sub(d.begun)
		if at < d.length {
			d.due += d.rate(float64(at)/float64(d.length)*24) * now.Sub(last).Seconds()
			if err := d.submit(ctx); err != nil {
				return err
			}
		}
		last = now
		if waves < d.waves && at > d.lossAt(waves) {
			d.fleet.lose(d.loss, d.rng)
			waves++
		}
		if now.Sub(scaled) >= step {
			scaled = now
			if err := d.scale(ctx, now); err != nil {
				return err
			}
		}
		switch {
		case at >= d.length && d.ledger.open() == 0:
			return nil
		case at >= 3*d.length:
			return fmt.Errorf("%d rollouts have no result twice a day's length after its end", d.ledger.open())
		}
	}
}

// rate is the number of rollouts that are due in a second at an hour. They keep up to 63 %
// of all slots busy, and 135 % in a burst.
func (d *simulation) rate(hour float64) float64 {
	full := 0.9 * float64(d.workers*d.slots) / d.busy.Seconds()
	share := 0.1 + 0.6*math.Max(0, math.Sin((hour-6)/24*2*math.Pi))
	for _, burst := range []float64{8, 13, 18, 22} { // half an hour each
		if hour >= burst && hour < burst+0.5 {
			share = 1.5
		}
	}
	return full * share
}

// submit submits the groups that are due.
func (d *simulation) submit(ctx context.Context) error {
	for ; d.due >= groupOf; d.due -= groupOf {
		var group []schema.Request
		for range groupOf {
			group = append(group, request(d.submitted))
			d.submitted++
		}
		d.ledger.submit(group)
		if _, err := d.trainer.Submit(ctx, 2, group); err != nil {
			return err
		}
	}
	return nil
}

// scale reads the queues and the results, adapts the number of workers by the rule of
// docs/metrics.md, and adds a row.
func (d *simulation) scale(ctx context.Context, now time.Time) error {
	b, err := d.backlogs.Read(ctx)
	if err != nil {
		return err
	}
	r := row{hour: now.Sub(d.begun).Seconds() / d.length.Seconds() * 24, submitted: d.submitted}
	var unfit uint64
	for _, l := range b.Lanes {
		r.queued, r.taken, unfit = r.queued+l.Queued, r.taken+l.Taken, unfit+l.Unfit
	}
	need := (int(r.queued+r.taken+unfit) + d.slots - 1) / d.slots
	r.wanted = min(max(need, fewest), d.workers)
	running := d.fleet.size()
	if running <= r.wanted {
		d.tooMany = now
	}
	switch {
	case running < r.wanted:
		d.fleet.add(r.wanted - running) //nolint:contextcheck // workers live as long as their fleet
	case now.Sub(d.tooMany) >= coolDown:
		d.fleet.remove(running - r.wanted)
		d.tooMany = now
	}
	if d.read, err = d.trainer.Results.From(ctx, d.read, d.ledger.ended); err != nil {
		return err
	}
	r.running, r.lost = d.fleet.size(), d.fleet.lost()
	d.ledger.fill(&r)
	d.rows = append(d.rows, r)
	return nil
}

// lossAt is the time at which workers are lost for the n-th time.
func (d *simulation) lossAt(n int) time.Duration {
	return d.length * time.Duration(2*n+1) / time.Duration(2*d.waves)
}

func (d *simulation) lossHours() (out []float64) {
	for i := range d.waves {
		out = append(out, d.lossAt(i).Seconds()/d.length.Seconds()*24)
	}
	return out
}

// quantile returns a quantile of sorted values, NaN if there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
