package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// leaseStatus is the status of a worker instance's lease. An instance has one
// lease for all its rollouts: a message in a memory-storage stream that expires
// unless it is renewed. While the lease is alive, no other worker tries to take the
// rollouts over. The owner of a rollout is decided by its state record alone.
type leaseStatus int

const (
	leaseUnknown leaseStatus = iota
	leaseAbsent
	leaseAlive
	leaseEnded // the instance is gone: it or its successor has ended the lease
)

// leases keeps the lease of a worker instance and reads other leases.
type leases struct {
	*base
	jobs      *jobs
	fleet     *fleet
	suspended *switchable // on while this instance's lease is in doubt
}

// The values of a lease.
const (
	leaseValueAlive = "alive"
	leaseValueEnded = "ended"
)

// of reads an instance's lease through the leader of its stream.
func (l *leases) of(ctx context.Context, worker, instance string) (leaseStatus, error) {
	m, err := l.broker.Messages.Last(ctx, subjects.StreamLeases, subjects.Lease(worker, instance))
	switch {
	case err != nil:
		return leaseUnknown, err
	case m == nil || len(m.Data) == 0:
		return leaseAbsent, nil
	case string(m.Data) == leaseValueEnded:
		return leaseEnded, nil
	default:
		return leaseAlive, nil
	}
}

func (l *leases) write(ctx context.Context, instance, value string) error {
	subject := subjects.Lease(l.wid, instance)
	if _, err := l.broker.JetStream().Publish(ctx, subject, []byte(value), jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("write the lease %s: %w", subject, err)
	}
	return nil
}

// renew renews the lease until the context ends. If it could not renew it for
// Timing.Lease, it suspends every job; afterwards it verifies every job against its
// state record before the job goes on.
func (l *leases) renew(ctx context.Context) {
	var confirmed time.Time // time of the last renewal that was confirmed
	l.suspended.set(true)
	retry := max(l.timing.Renew/20, 50*time.Millisecond)
	for {
		sent := time.Now()
		wait, gap := l.timing.Renew, elapsed(confirmed, sent)
		if suspended, _ := l.suspended.get(); !suspended && gap >= l.timing.Lease {
			l.log.Warn().Dur("since", gap).Msg("this worker could not show that it is alive; its rollouts are suspended")
			l.suspended.set(true)
		}
		op, cancel := context.WithTimeout(ctx, min(wire.OpTimeout, l.timing.Lease/4))
		err := l.write(op, l.instance, leaseValueAlive)
		cancel()
		switch {
		case err == nil && elapsed(sent, time.Now()) < l.timing.Lease && (confirmed.IsZero() || gap < l.timing.Renew*2):
			confirmed = sent
			l.suspended.set(false)
		case err == nil:
			// A renewal was missed: others may have taken rollouts over.
			if suspended, _ := l.suspended.get(); l.verify(ctx, suspended) {
				confirmed = sent
				l.suspended.set(false)
			} else {
				wait = retry
			}
		default:
			l.cfg.Metrics.LeaseFailed()
			l.log.Debug().Err(err).Msg("the lease was not renewed")
			wait = retry
			if errors.Is(err, jetstream.ErrNoStreamResponse) || l.lost(ctx) { // the server has lost its streams in memory
				op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
				if err := l.broker.Streams.Restore(op, l.timing); err != nil {
					l.log.Debug().Err(err).Msg("the streams in memory are not back")
				}
				cancel()
			}
		}
		if wire.Pause(ctx, wait) != nil {
			return
		}
	}
}

// elapsed returns the larger of the monotonic and the wall-clock difference. The
// monotonic clock stops while the machine sleeps, and the wall clock can be set.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// lost reports whether the stream of leases does not exist. A publish to a
// missing stream gets "no responders" only if no other subscription matches the
// subject.
func (l *leases) lost(ctx context.Context) bool {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	_, err := l.broker.JetStream().Stream(op, subjects.StreamLeases)
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// verify compares every job with its state record. With touch it writes the
// record again, so that a take-over in progress is refused. It returns false if
// this failed for some job.
func (l *leases) verify(ctx context.Context, touch bool) bool {
	jobs := l.jobs.claimed()
	limit := make(chan struct{}, 64)
	var all sync.WaitGroup
	var mu sync.Mutex
	ok := true
	for _, j := range jobs {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
			defer cancel()
			if err := j.check(op, touch); err != nil {
				mu.Lock()
				defer mu.Unlock()
				ok = false
				l.log.Debug().Err(err).Str("rollout", string(j.Request.ID)).Msg("not known yet whether this rollout is still this worker's")
			}
		})
	}
	all.Wait()
	return ok
}

// check compares a job with its state record. A job that no longer owns its
// rollout is fenced, which is not an error.
func (j *Job) check(ctx context.Context, touch bool) error {
	if !j.mu.TryLock() { // the job writes the state now, and that write checks it too
		return nil
	}
	defer j.mu.Unlock()
	if why := j.cause(); why != nil && !errors.Is(why, ErrCancelled) { // fenced, or it has ended
		return nil
	}
	m := j.resolution(askOwned)
	m.touch, m.known = touch, touch
	s, err := j.resolve(ctx, m)
	switch {
	case err != nil:
		return err
	case s == stepFence:
		j.fence("its lease had lapsed and its state has moved")
	case s == stepStop:
		j.end(ErrCancelled)
	}
	return nil
}

// progress restarts the ack wait of each job's message once per Timing.Progress.
func (l *leases) progress(ctx context.Context) {
	const steps = 20
	next := map[schema.ID]time.Time{}
	tick := time.NewTicker(max(l.timing.Progress/steps, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if suspended, _ := l.suspended.get(); suspended {
				continue
			}
			for _, j := range l.jobs.due(next, now, l.timing.Progress) {
				if err := j.msg.Load().progress(); err != nil {
					l.log.Debug().Err(err).Msg("progress was not reported")
				}
			}
		}
	}
}

// retirePredecessors ends the instances of this worker that no process runs as any more.
func (l *leases) retirePredecessors(ctx context.Context) error {
	former := map[string]bool{}
	for stream, filter := range map[string]string{subjects.StreamLeases: subjects.LeasesOf(l.wid), subjects.StreamWorkers: subjects.PresencesOf(l.wid)} {
		s, err := l.broker.Streams.Open(ctx, stream)
		if err != nil {
			return err
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return fmt.Errorf("look for former instances: %w", err)
		}
		for subject := range info.State.Subjects {
			former[subject[strings.LastIndexByte(subject, '.')+1:]] = true
		}
	}
	delete(former, l.instance)
	for instance := range former {
		if l.cfg.Lives != nil && l.cfg.Lives(instance) {
			continue
		}
		if err := l.bury(ctx, instance); err != nil {
			return err
		}
	}
	return nil
}

// bury ends the lease of another instance of this worker and releases its queue messages,
// so that other workers take its rollouts over at once. The caller knows that no process
// runs as this instance any more.
func (l *leases) bury(ctx context.Context, instance string) error {
	if err := l.write(ctx, instance, leaseValueEnded); err != nil {
		return err
	}
	crash.Here("handover.retired")
	former, seq, err := l.fleet.presenceOf(ctx, instance)
	if seq == 0 {
		return err
	}
	for _, id := range former.Running {
		err := l.release(ctx, id, instance)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, broker.ErrUnreachable) {
			return err
		}
		if err != nil { // its message comes back after its ack wait
			l.log.Warn().Err(err).Str("rollout", string(id)).Msg("a rollout of the former instance was not freed")
		}
	}
	return l.fleet.leave(ctx, instance)
}

// release returns the message of a former instance's rollout to the queue.
func (l *leases) release(ctx context.Context, id schema.ID, instance string) error {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	r, err := l.readState(op, id)
	if err != nil {
		return err
	}
	state := &r.Value
	if r.Seq == 0 || !state.Owned() || state.Worker != l.wid || state.Instance != instance || state.Ack == "" {
		return nil
	}
	if err := l.broker.BulkConn().Publish(state.Ack, []byte(nakBody(0))); err != nil {
		return fmt.Errorf("free the message of %s: %w", id, err)
	}
	return nil
}
