package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/broker/internal/wire"
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

// The values of a lease.
const (
	leaseValueAlive = "alive"
	leaseValueEnded = "ended"
)

// leaseOf reads an instance's lease through the leader of its stream.
func (w *Worker) leaseOf(ctx context.Context, worker, instance string) (leaseStatus, error) {
	m, err := w.Last(ctx, subjects.StreamLeases, subjects.Lease(worker, instance))
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

func (w *Worker) writeLease(ctx context.Context, instance, value string) error {
	subject := subjects.Lease(w.wid, instance)
	if _, err := w.JetStream().Publish(ctx, subject, []byte(value), jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("write the lease %s: %w", subject, err)
	}
	return nil
}

// renewLease renews the lease until the context ends. If it could not renew it for
// Timing.Lease, it suspends every job; afterwards it verifies every job against its
// state record before the job goes on.
func (w *Worker) renewLease(ctx context.Context) {
	var confirmed time.Time // time of the last renewal that was confirmed
	w.suspended.set(true)
	retry := max(w.timing.Renew/20, 50*time.Millisecond)
	for {
		sent := time.Now()
		wait, gap := w.timing.Renew, elapsed(confirmed, sent)
		if suspended, _ := w.suspended.get(); !suspended && gap >= w.timing.Lease {
			w.log.Warn().Dur("since", gap).Msg("this worker could not show that it is alive; its rollouts are suspended")
			w.suspended.set(true)
		}
		op, cancel := context.WithTimeout(ctx, min(wire.OpTimeout, w.timing.Lease/4))
		err := w.writeLease(op, w.instance, leaseValueAlive)
		cancel()
		switch {
		case err == nil && elapsed(sent, time.Now()) < w.timing.Lease && (confirmed.IsZero() || gap < w.timing.Renew*2):
			confirmed = sent
			w.suspended.set(false)
		case err == nil:
			// A renewal was missed: others may have taken rollouts over.
			if suspended, _ := w.suspended.get(); w.verify(ctx, suspended) {
				confirmed = sent
				w.suspended.set(false)
			} else {
				wait = retry
			}
		default:
			w.log.Debug().Err(err).Msg("the lease was not renewed")
			wait = retry
			if errors.Is(err, jetstream.ErrNoStreamResponse) || w.leasesLost(ctx) { // the server has lost its streams in memory
				op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
				if err := w.Restore(op, w.timing); err != nil {
					w.log.Debug().Err(err).Msg("the streams in memory are not back")
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

// leasesLost reports whether the stream of leases does not exist. A publish to a
// missing stream gets "no responders" only if no other subscription matches the
// subject.
func (w *Worker) leasesLost(ctx context.Context) bool {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	_, err := w.JetStream().Stream(op, subjects.StreamLeases)
	return errors.Is(err, jetstream.ErrStreamNotFound)
}

// claimedJobs lists the jobs with a confirmed claim.
func (w *Worker) claimedJobs() []*Job {
	w.mu.Lock()
	all := make([]*Job, 0, len(w.jobs))
	for _, j := range w.jobs {
		all = append(all, j)
	}
	w.mu.Unlock()
	out := all[:0]
	for _, j := range all {
		if j.claimed.Load() {
			out = append(out, j)
		}
	}
	return out
}

// verify compares every job with its state record. With touch it writes the
// record again, so that a take-over in progress is refused. It returns false if
// this failed for some job.
func (w *Worker) verify(ctx context.Context, touch bool) bool {
	jobs := w.claimedJobs()
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
				w.log.Debug().Err(err).Str("rollout", string(j.Request.ID)).Msg("not known yet whether this rollout is still this worker's")
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
	if why := j.cause(); why != nil && !errors.Is(why, ErrCancelled) { // fenced, or settled
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
func (w *Worker) progress(ctx context.Context) {
	const steps = 20
	next := map[schema.ID]time.Time{}
	tick := time.NewTicker(max(w.timing.Progress/steps, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if suspended, _ := w.suspended.get(); suspended {
				continue
			}
			w.mu.Lock()
			due := make([]*Job, 0, len(w.jobs)/steps+1)
			for id, j := range w.jobs {
				if at, ok := next[id]; !ok {
					next[id] = now.Add(w.timing.Progress)
				} else if !now.Before(at) {
					next[id] = now.Add(w.timing.Progress)
					due = append(due, j)
				}
			}
			if len(next) > 2*len(w.jobs)+100 {
				for id := range next {
					if w.jobs[id] == nil {
						delete(next, id)
					}
				}
			}
			w.mu.Unlock()
			for _, j := range due {
				if err := j.msg.Load().progress(); err != nil {
					w.log.Debug().Err(err).Msg("progress was not reported")
				}
			}
		}
	}
}

// retirePredecessors ends the leases of former instances of this worker and releases their
// queue messages, so that other workers take their rollouts over at once. The
// caller has the lock of the worker's state directory, so no former instance
// runs any more.
func (w *Worker) retirePredecessors(ctx context.Context) error {
	s, err := w.Stream(ctx, subjects.StreamLeases)
	if err != nil {
		return err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subjects.LeasesOf(w.wid)))
	if err != nil {
		return fmt.Errorf("look for leases of former instances: %w", err)
	}
	for subject := range info.State.Subjects {
		if subject == subjects.Lease(w.wid, w.instance) {
			continue
		}
		if _, err := w.JetStream().Publish(ctx, subject, []byte(leaseValueEnded)); err != nil {
			return fmt.Errorf("end the lease %s: %w", subject, err)
		}
	}
	crash.Here("handover.retired")
	former, err := w.presenceOf(ctx, w.wid)
	if err != nil || former == nil || former.Instance == w.instance {
		return err
	}
	for _, id := range former.Running {
		err := w.release(ctx, id, former.Instance)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, broker.ErrUnreachable) {
			return err
		}
		if err != nil { // its message comes back after its ack wait
			w.log.Warn().Err(err).Str("rollout", string(id)).Msg("a rollout of the former instance was not freed")
		}
	}
	return nil
}

// release returns the message of a former instance's rollout to the queue.
func (w *Worker) release(ctx context.Context, id schema.ID, instance string) error {
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	r, err := w.readState(op, id)
	if err != nil {
		return err
	}
	state := &r.Value
	if r.Seq == 0 || !state.Owned() || state.Worker != w.wid || state.Instance != instance || state.Ack == "" {
		return nil
	}
	if err := w.BulkConn().Publish(state.Ack, []byte("-NAK")); err != nil {
		return fmt.Errorf("free the message of %s: %w", id, err)
	}
	return nil
}

// elect makes this worker the janitor until the janitor's lease expires, or
// renews that lease. It returns false if another worker has it.
func (w *Worker) elect(ctx context.Context) (bool, error) {
	me := w.wid + "." + w.instance
	m, err := w.Last(ctx, subjects.StreamLeases, subjects.JanitorLease)
	if err != nil {
		return false, err
	}
	var seq uint64
	if m != nil {
		if seq = m.Sequence; string(m.Data) != me {
			return false, nil
		}
	}
	msg := &nats.Msg{Subject: subjects.JanitorLease, Data: []byte(me), Header: nats.Header{wire.HeaderExpect: {strconv.FormatUint(seq, 10)}}}
	_, err = w.PutMsg(ctx, msg)
	if errors.Is(err, broker.ErrMoved) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("become the janitor: %w", err)
	}
	return true, nil
}
