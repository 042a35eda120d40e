package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// moreTrainers is the number of trainers with new streams.
const moreTrainers = 50

// atOnce is the number of empty rollouts at once.
const atOnce = 32

// capacity prints the resources that servers use for connected workers and for the streams of
// trainers, and how many empty rollouts they do in a second.
func capacity(ctx context.Context, o options) error {
	s, err := startSystem(ctx, o, o.workers)
	if err != nil {
		return err
	}
	defer s.stop()
	admin, err := s.dial(ctx, broker.RoleAdmin, broker.RoleAdmin, s.keys.AdminCreds())
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := setUp(ctx, admin, broker.StreamsConfig{Replicas: o.servers}, trainerName); err != nil {
		return err
	}
	if err := rollouts(ctx, o, s); err != nil {
		return err
	}
	begun := time.Now()
	before, err := s.usage()
	if err != nil {
		return err
	}
	var names []string
	for i := range moreTrainers {
		names = append(names, fmt.Sprintf("t%d", i))
	}
	if err := setUp(ctx, admin, broker.StreamsConfig{Replicas: o.servers}, names...); err != nil {
		return err
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	fmt.Printf("%d trainers more, each with 4 streams and 4 consumers: %d KB for each, made in %s\n", moreTrainers, (after.resident-before.resident)/1024/moreTrainers, time.Since(begun).Round(time.Second))
	return connections(ctx, o, s)
}

// rollouts runs empty rollouts with one worker.
func rollouts(ctx context.Context, o options, s *system) error {
	w, err := newWorkerSide(ctx, s, 0, 2*atOnce, broker.DefaultTiming())
	if err != nil {
		return err
	}
	defer w.leave()
	b, err := s.dial(ctx, broker.RoleTrainer, trainerName, s.keys.TrainerCreds(trainerName))
	if err != nil {
		return err
	}
	defer b.Close()
	side, err := queue.NewTrainer(b, trainerName)
	if err != nil {
		return err
	}
	for at := 0; at < o.rollouts; at += 100 {
		var group []schema.Request
		for i := at; i < min(at+100, o.rollouts); i++ {
			group = append(group, request(i))
		}
		if _, err := side.Submit(ctx, 2, group); err != nil {
			return err
		}
	}
	before, err := s.usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	var all sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			for next.Add(1) <= int64(o.rollouts) {
				j, err := w.side.Take(ctx)
				if err == nil {
					err = j.Done(ctx, schema.Result{ID: j.Request.ID, Trainer: trainerName, Attempt: j.Attempt, Status: schema.StatusDone})
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		return err
	}
	took := time.Since(begun)
	after, err := s.usage()
	if err != nil {
		return err
	}
	fmt.Printf("%d empty rollouts, %d at once: %.0f a second, servers %.0f %% of a core\n", o.rollouts, atOnce, float64(o.rollouts)/took.Seconds(), 100*(after.cpu-before.cpu).Seconds()/took.Seconds())
	return nil
}

// connections connects the other workers, each with two connections, and lets them wait
// for work.
func connections(ctx context.Context, o options, s *system) error {
	before, err := s.usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	takes, stop := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	var mu sync.Mutex
	var all []*workerSide
	defer func() {
		stop()
		waiting.Wait()
		var ends sync.WaitGroup
		for _, w := range all {
			ends.Go(w.leave)
		}
		ends.Wait()
	}()
	err = inParallel(o.workers-1, func(i int) error {
		w, err := newWorkerSide(ctx, s, i+1, 1, broker.DefaultTiming())
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, w)
		waiting.Go(func() { _, _ = w.side.Take(takes) })
		return nil
	})
	if err != nil {
		return err
	}
	joined := time.Since(begun)
	if wire.Pause(ctx, idleFor/2) != nil { // the leases and the offers have been written
		return ctx.Err()
	}
	middle, err := s.usage()
	if err != nil || wire.Pause(ctx, idleFor) != nil {
		return errors.Join(err, ctx.Err())
	}
	after, err := s.usage()
	if err != nil {
		return err
	}
	n := int64(len(all))
	fmt.Printf("%d workers with %d connections, joined in %s: servers %d MB, %d KB for each worker, %.1f %% of a core\n",
		n, 2*n, joined.Round(time.Second), after.resident>>20, (after.resident-before.resident)/1024/max(n, 1), 100*(after.cpu-middle.cpu).Seconds()/idleFor.Seconds())
	return nil
}

// inParallel calls do for 0 to n-1, some at once, and returns the first error.
func inParallel(n int, do func(i int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// workerSide is a worker of this process, without sandboxes.
type workerSide struct {
	broker *broker.Broker
	side   *queue.Worker
	stop   context.CancelFunc
	ended  chan struct{}
}

func newWorkerSide(ctx context.Context, s *system, i, slots int, timing broker.Timing) (*workerSide, error) {
	name := workerName(i)
	b, err := s.dial(ctx, broker.RoleWorker, name, s.keys.WorkerCreds(name))
	if err != nil {
		return nil, err
	}
	w := &workerSide{broker: b, ended: make(chan struct{})}
	if w.side, err = queue.NewWorker(b, queue.WorkerConfig{Worker: name, Instance: "i1", Slots: slots, Timing: timing}); err != nil {
		b.Close()
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.stop = stop
	go func() {
		defer close(w.ended)
		_ = w.side.Run(life) // its error is that of a worker that is gone
	}()
	return w, nil
}

// leave ends the worker as SIGTERM does once its jobs have ended.
func (w *workerSide) leave() {
	w.stop()
	<-w.ended
	w.side.Close()
	w.broker.Close()
}

// lose ends the worker without a word: its connections are gone first.
func (w *workerSide) lose() {
	w.broker.Close()
	w.stop()
	<-w.ended
}
