package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// fleet has the workers of a day.
type fleet struct {
	options
	system *system
	ledger *ledger
	life   context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup
	joins  chan struct{} // bounds the workers that connect at once

	mu      sync.Mutex
	running []*member // and starting
	started int
	gone    int // lost
	most    int
}

// member is a worker of a day.
type member struct {
	takes context.Context // ends when the worker takes no more
	drain context.CancelFunc
	lost  context.Context // ends when the worker is lost
	lose  context.CancelFunc
}

func newFleet(ctx context.Context, o options, s *system, l *ledger) *fleet {
	f := &fleet{options: o, system: s, ledger: l, joins: make(chan struct{}, 16)}
	f.life, f.stop = context.WithCancel(ctx)
	return f
}

// end ends all workers.
func (f *fleet) end() {
	f.stop()
	f.all.Wait()
}

// drain lets the workers finish their rollouts, and ends them.
func (f *fleet) drain() {
	f.remove(f.size())
	f.all.Wait()
}

func (f *fleet) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.running)
}

func (f *fleet) lost() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

// add starts n workers.
func (f *fleet) add(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		if f.started == f.maxStarts() {
			return
		}
		m := &member{}
		m.takes, m.drain = context.WithCancel(f.life)
		m.lost, m.lose = context.WithCancel(context.WithoutCancel(f.life))
		i := f.started
		f.started++
		f.running = append(f.running, m)
		f.most = max(f.most, len(f.running))
		f.all.Go(func() {
			if err := f.serve(m, i); err != nil && f.life.Err() == nil {
				fmt.Fprintf(os.Stderr, "worker %d: %v\n", i, err)
			}
		})
	}
}

// remove drains the n youngest workers.
func (f *fleet) remove(n int) { f.take(n, nil, func(m *member) { m.drain() }) }

// lose ends a share of the workers, chosen at random, without a word.
func (f *fleet) lose(share float64, rng *rand.Rand) {
	n := int(share * float64(f.size()))
	f.take(n, rng, func(m *member) { m.lose(); m.drain() })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone += n
}

// take removes n workers from the list, the youngest or at random.
func (f *fleet) take(n int, rng *rand.Rand, end func(*member)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rng != nil {
		rng.Shuffle(len(f.running), func(i, j int) { f.running[i], f.running[j] = f.running[j], f.running[i] })
	}
	keep := len(f.running) - min(n, len(f.running))
	for _, m := range f.running[keep:] {
		end(m)
	}
	f.running = f.running[:keep]
}

// serve is the life of a worker.
func (f *fleet) serve(m *member, i int) error {
	if wire.Pause(m.takes, bootTime) != nil {
		return nil
	}
	f.joins <- struct{}{}
	w, err := newWorkerSide(m.takes, f.system, i, f.slots, f.timing())
	<-f.joins
	if err != nil {
		if errors.Is(m.takes.Err(), context.Canceled) {
			return nil
		}
		return err
	}
	var slots sync.WaitGroup
	for range f.slots {
		slots.Go(func() {
			for {
				j, err := w.side.Take(m.takes)
				if err != nil {
					return
				}
				f.ledger.began(j.Request.ID, j.Attempt)
				if !f.work(m, j) {
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { slots.Wait(); close(ended) }()
	select {
	case <-m.lost.Done():
		w.lose()
		<-ended
	case <-ended:
		if m.lost.Err() != nil {
			w.lose()
		} else {
			w.leave()
		}
	}
	m.lose()
	return nil
}

// work runs a rollout. It returns false if the worker is lost.
func (f *fleet) work(m *member, j *queue.Job) bool {
	busy := time.Duration(float64(f.busy) * rand.ExpFloat64())
	t := time.NewTimer(min(max(busy, f.busy/10), 4*f.busy))
	defer t.Stop()
	select {
	case <-t.C:
	case <-j.Context().Done(): // another attempt has it
	case <-f.life.Done(): // the day was ended
		return false
	case <-m.lost.Done():
		f.ledger.lost(j.Request.ID)
		return false
	}
	err := j.Done(context.WithoutCancel(f.life), schema.Result{ID: j.Request.ID, Trainer: trainerName, Attempt: j.Attempt, Status: schema.StatusDone})
	if err != nil && !errors.Is(err, queue.ErrFenced) && m.lost.Err() == nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", j.Request.ID, err)
	}
	return m.lost.Err() == nil
}
