package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/schema"
)

// sweepFor is the longest time for which a worker waits for the removal of what earlier
// processes left. The removal goes on in the background.
const sweepFor = 30 * time.Second

// sweeps are the removals of what earlier processes left. Only the process that has the turn
// removes, so that none removes the sandboxes of one that takes rollouts later.
type sweeps struct {
	wait    time.Duration
	running sync.WaitGroup // with the watch of the other processes, which begins sweeps
}

// begin calls remove, and late if it takes longer than the wait. The channel is closed when
// remove has returned.
func (s *sweeps) begin(remove, late func()) <-chan struct{} {
	over := make(chan struct{})
	s.running.Go(func() {
		defer close(over)
		slow := time.AfterFunc(s.wait, late)
		defer slow.Stop()
		remove()
	})
	return over
}

// await waits until removals are over, but no longer than the wait for all of them.
func (s *sweeps) await(ctx context.Context, all []<-chan struct{}) {
	limited, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	for _, over := range all {
		select {
		case <-over:
		case <-limited.Done():
			return
		}
	}
}

// end waits for the removals, whose context has ended, but no longer than the wait.
func (s *sweeps) end() {
	over := make(chan struct{})
	go func() { s.running.Wait(); close(over) }()
	wait(s.wait, over, nil)
}

// sweep begins to remove the remains of an earlier process in a place. The channels are
// closed when this is over. It removes nothing more after the end of ctx.
func (w *Worker) sweep(ctx context.Context, place int) (all []<-chan struct{}) {
	own := place == w.cfg.Process.Place()
	// Rollouts of this process, and sandboxes that it keeps after them.
	keep := func(id schema.ID) bool {
		return ctx.Err() != nil || own && (w.shells.has(id) || w.cfg.Reach != nil && w.cfg.Reach.Newest(id) != nil)
	}
	for _, b := range w.cfg.Backends {
		log := w.cfg.Log.With().Str("backend", b.Name()).Logger()
		all = append(all, w.sweeps.begin(func() {
			n, err := b.Sweep(ctx, w.owner(place), keep)
			if err != nil {
				log.Warn().Err(err).Msg("sandboxes or images of earlier processes were not removed")
			} else if n > 0 {
				log.Info().Int("sandboxes", n).Msg("removed sandboxes of an earlier process")
			}
		}, func() {
			log.Warn().Msgf("the removal of sandboxes of earlier processes takes longer than %s; it goes on in the background", w.sweeps.wait)
		}))
	}
	return all
}

// bury removes what another process left that was killed, or could not tell its end, and has
// its rollouts taken over.
func (w *Worker) bury(ctx context.Context, place int, instance string) error {
	w.cfg.Log.Warn().Str("instance", instance).Msg("another process of this worker was killed, or could not tell its end; its rollouts are taken over")
	w.sweeps.await(ctx, w.sweep(ctx, place))
	if err := w.queue.Bury(ctx, instance); err != nil {
		return fmt.Errorf("end instance %s: %w", instance, err)
	}
	return nil
}

// retire lets another process take rollouts in this one's place. The caller has ended the
// wait for jobs, and the sweeps.
func (w *Worker) retire(ctx context.Context) {
	w.taking.Lock() // no slot waits for a job any more
	defer w.taking.Unlock()
	w.cfg.Log.Info().Int64("running", w.busy.Load()).Msg("another process of this worker takes rollouts from now on; this one ends with those that it runs")
	w.queue.Drain(ctx)
	w.sweeps.end()
	if w.cfg.Retired != nil {
		w.cfg.Retired()
	}
	if err := w.cfg.Process.Retire(w.use); err != nil {
		w.cfg.Log.Warn().Err(err).Msg("the other process counts all slots of this one as used")
	}
}

// use has the jobs of this process.
func (w *Worker) use() handover.Use {
	return handover.Use{Running: int(w.busy.Load()), Idle: w.cfg.Room.idleMemory()}
}

// left ends the use of a slot.
func (w *Worker) left() {
	w.busy.Add(-1)
	if err := w.cfg.Process.Report(w.use); err != nil {
		w.cfg.Log.Warn().Err(err).Msg("the other process counts more rollouts than this one runs")
	}
}
