package main

import (
	"context"
	"fmt"
	"time"
)

// rateFor is the time over which a rate is measured, and warmUp the one before it.
const (
	rateFor = 15 * time.Second
	warmUp  = 3 * time.Second
)

// rates prints how many raw messages servers carry in a second, and how many model calls.
// With three servers each of them goes from one server to another.
func rates(ctx context.Context, o options) error {
	s, err := startSystem(ctx, o, 1)
	if err != nil {
		return err
	}
	defer s.stop()
	for _, r := range []struct {
		of      string
		measure func(context.Context, options, *system) (rate, error)
	}{{"raw messages", rawMessages}, {"model calls", modelCalls}} {
		got, err := r.measure(ctx, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", r.of, err)
		}
		fmt.Printf("%s of %d bytes: %.0f a second, servers (%d) %.0f %% of a core\n", r.of, len(conversation()), float64(got.count)/rateFor.Seconds(), o.servers, 100*got.cpu.Seconds()/rateFor.Seconds())
	}
	return nil
}

// rate is a number of events in rateFor, and the servers' processor time.
type rate struct {
	count int64
	cpu   time.Duration
}

// rateOf counts the events while wait runs.
func (s *system) rateOf(count func() (int64, error), wait func() error) (r rate, err error) {
	before, err := s.usage()
	if err != nil {
		return r, err
	}
	first, err := count()
	if err != nil {
		return r, err
	}
	if err := wait(); err != nil {
		return r, err
	}
	last, err := count()
	if err != nil {
		return r, err
	}
	after, err := s.usage()
	return rate{last - first, after.cpu - before.cpu}, err
}
