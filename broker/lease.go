package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A worker instance has one lease for all its rollouts: a value in memory that
// vanishes when it is not renewed. It decides nothing by itself; the state
// records do. It only says whether somebody may try to take over.
type leaseStanding int

const (
	leaseAbsent leaseStanding = iota
	leaseAlive
	leaseEnded // the instance is gone for certain, its successor or itself has said so
)

// The values of a lease.
const (
	leaseValueAlive = "alive"
	leaseValueEnded = "ended"
)

// leaseOf reads an instance's lease through the leader of its stream.
func (b *Broker) leaseOf(ctx context.Context, worker, instance string) (leaseStanding, error) {
	m, err := b.last(ctx, subjects.StreamLeases, subjects.Lease(worker, instance))
	switch {
	case err != nil:
		return leaseAbsent, err
	case m == nil || len(m.Data) == 0:
		return leaseAbsent, nil
	case string(m.Data) == leaseValueEnded:
		return leaseEnded, nil
	default:
		return leaseAlive, nil
	}
}

func (w *WorkerSide) writeLease(ctx context.Context, instance, value string) error {
	subject := subjects.Lease(w.wid, instance)
	if _, err := w.js.Publish(ctx, subject, []byte(value), jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("write the lease %s: %w", subject, err)
	}
	return nil
}

// keep renews the lease until the context ends. When it could not for as long
// as the lease lasts, every job is held; when it can again, every job is held
// to its state record before it goes on.
func (w *WorkerSide) keep(ctx context.Context) {
	var confirmed time.Time // when the last confirmed sign was sent
	w.standing.set(true)
	retry := max(w.timing.Renew/20, 50*time.Millisecond)
	for {
		sent := time.Now()
		wait := w.timing.Renew
		if held, _ := w.standing.get(); !held && sent.Sub(confirmed) >= w.timing.Lease {
			w.log.Warn().Dur("since", sent.Sub(confirmed)).Msg("this worker could not show that it is alive; everything is held")
			w.standing.set(true)
			w.suspend()
		}
		op, cancel := context.WithTimeout(ctx, min(opTimeout, w.timing.Lease/4))
		err := w.writeLease(op, w.instance, leaseValueAlive)
		cancel()
		gap := sent.Sub(confirmed)
		switch {
		case err == nil && time.Since(sent) < w.timing.Lease && (confirmed.IsZero() || gap < w.timing.Renew*2):
			confirmed = sent
			w.standing.set(false)
		case err == nil:
			// A sign was missed: others may have thought this worker dead.
			if held, _ := w.standing.get(); w.verify(ctx, held) {
				confirmed = sent
				w.standing.set(false)
				w.resume()
			} else {
				wait = retry
			}
		default:
			w.log.Debug().Err(err).Msg("the lease was not renewed")
			wait = retry
			if errors.Is(err, jetstream.ErrNoStreamResponse) { // the server is there, its memory is not
				op, cancel := context.WithTimeout(ctx, opTimeout)
				if err := w.restore(op, w.timing); err != nil {
					w.log.Debug().Err(err).Msg("the streams in memory are not back")
				}
				cancel()
			}
		}
		if pause(ctx, wait) != nil {
			return
		}
	}
}

func (w *WorkerSide) suspend() {
	for _, j := range w.mine() {
		j.hold.set(true)
	}
}

func (w *WorkerSide) resume() {
	for _, j := range w.mine() {
		j.hold.set(false)
	}
}

// mine lists the jobs whose claim is confirmed.
func (w *WorkerSide) mine() []*Job {
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

// verify holds every job to its state record; with touch it writes each anew,
// so that a take-over that is under way is refused. It is false when that
// could not be done for all.
func (w *WorkerSide) verify(ctx context.Context, touch bool) bool {
	jobs := w.mine()
	limit := make(chan struct{}, 64)
	var all sync.WaitGroup
	var mu sync.Mutex
	ok := true
	for _, j := range jobs {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			op, cancel := context.WithTimeout(ctx, opTimeout)
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

// check compares a job with its state record. A job that is not its rollout's
// any more is fenced, which is no error.
func (j *Job) check(ctx context.Context, touch bool) error {
	if !j.mu.TryLock() { // its result is being written, which checks it as well
		return nil
	}
	defer j.mu.Unlock()
	if why := j.cause(); why != nil && !errors.Is(why, ErrCancelled) { // fenced, or settled
		return nil
	}
	if touch {
		seq, err := j.w.put(ctx, subjects.State(j.Request.ID), &j.state, j.stateSeq)
		if err == nil {
			j.stateSeq = seq
			return nil
		}
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	var now schema.State
	seq, found, err := j.w.lastRollout(ctx, subjects.State(j.Request.ID), &now)
	switch {
	case err != nil:
		return err
	case !found || !j.mine(&now) || now.Status.Terminal():
		j.fence("its lease had lapsed and its state has moved")
	case now.Status == schema.StatusCancelling:
		j.state, j.stateSeq = now, seq
		j.end(ErrCancelled)
	default:
		j.state, j.stateSeq = now, seq
	}
	return nil
}

// progress tells the queue that the jobs' messages are in good hands, spread
// over the interval.
func (w *WorkerSide) progress(ctx context.Context) {
	const steps = 20
	next := map[schema.ID]time.Time{}
	tick := time.NewTicker(max(w.timing.Progress/steps, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if held, _ := w.standing.get(); held {
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
					w.log.Debug().Err(err).Msg("progress was not told")
				}
			}
			w.handover.progress(now, w.timing.Progress)
		}
	}
}

// succeed ends the leases of this worker's former instances, whose place it
// holds a lock on, and frees their messages, so that others take their rollouts
// over at once.
func (w *WorkerSide) succeed(ctx context.Context) error {
	s, err := w.stream(ctx, subjects.StreamLeases)
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
		if _, err := w.js.Publish(ctx, subject, []byte(leaseValueEnded)); err != nil {
			return fmt.Errorf("end the lease %s: %w", subject, err)
		}
	}
	former, err := w.presenceOf(ctx, w.wid)
	if err != nil || former == nil || former.Instance == w.instance {
		return err
	}
	for _, id := range former.Running {
		state, _, found, err := w.readState(ctx, id)
		if err != nil {
			return err
		}
		if found && state.Owned() && state.Worker == w.wid && state.Instance == former.Instance && state.Ack != "" {
			if err := w.bulk.Publish(state.Ack, []byte("-NAK")); err != nil {
				return fmt.Errorf("free the message of %s: %w", id, err)
			}
		}
	}
	return nil
}

// elect makes this worker the janitor for as long as the lease lasts, if there
// is none.
func (w *WorkerSide) elect(ctx context.Context) (bool, error) {
	me := w.wid + "." + w.instance
	m, err := w.last(ctx, subjects.StreamLeases, subjects.JanitorLease)
	if err != nil {
		return false, err
	}
	var seq uint64
	if m != nil {
		if seq = m.Sequence; string(m.Data) != me {
			return false, nil
		}
	}
	msg := &nats.Msg{Subject: subjects.JanitorLease, Data: []byte(me), Header: nats.Header{headerExpect: {strconv.FormatUint(seq, 10)}}}
	_, err = w.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == codeWrongLast || api.ErrorCode == codeWrongLastConst) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("become the janitor: %w", err)
	}
	return true, nil
}
