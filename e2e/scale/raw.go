package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
)

const (
	pairs  = 6   // of connections, one of which sends to the other
	unread = 256 // messages of a pair on their way at most
)

// rawMessages lets pairs of connections pass on messages of core NATS, as fast as they
// are read.
func rawMessages(ctx context.Context, o options, s *system) (rate, error) {
	passing, stop := context.WithCancelCause(ctx)
	var received atomic.Int64
	var all sync.WaitGroup
	for i := range pairs {
		all.Go(func() {
			from, to := s.urls[i%o.servers], s.urls[(i+1)%o.servers]
			if err := passOn(passing, s, from, to, fmt.Sprintf("scale.raw.%d", i), &received); err != nil {
				stop(err)
			}
		})
	}
	defer all.Wait()
	defer stop(nil)
	pause := func(d time.Duration) error {
		if wire.Pause(passing, d) != nil {
			return context.Cause(passing)
		}
		return nil
	}
	if err := pause(warmUp); err != nil {
		return rate{}, err
	}
	return s.rateOf(func() (int64, error) { return received.Load(), nil }, func() error { return pause(rateFor) })
}

// passOn sends messages from one server to another and counts the arrivals, until the context
// ends.
func passOn(ctx context.Context, s *system, from, to, subject string, received *atomic.Int64) error {
	key, err := nats.NkeyOptionFromSeed(s.keys.AdminCreds())
	if err != nil {
		return err
	}
	sender, err := nats.Connect(from, key)
	if err != nil {
		return err
	}
	defer sender.Close()
	receiver, err := nats.Connect(to, key)
	if err != nil {
		return err
	}
	defer receiver.Close()
	body := []byte(conversation())
	sub, err := receiver.SubscribeSync(subject)
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	for first := false; !first; { // the servers tell each other of the subscription
		if err := errors.Join(receiver.Flush(), sender.Publish(subject, body), sender.Flush()); err != nil {
			return err
		}
		_, err := sub.NextMsg(100 * time.Millisecond)
		if first = err == nil; !first && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	room, ended := make(chan struct{}, unread), make(chan struct{})
	var failed error // before ended is closed
	defer func() {
		_ = sub.Unsubscribe() // the receiver ends without it
		<-ended
	}()
	go func() {
		defer close(ended)
		for {
			if _, failed = sub.NextMsgWithContext(ctx); failed != nil {
				return
			}
			received.Add(1)
			select {
			case <-room:
			default: // a first message that was late
			}
		}
	}()
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return failed
		}
		if err := sender.Publish(subject, body); err != nil {
			return err
		}
	}
}
