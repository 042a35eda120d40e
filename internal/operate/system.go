// Package operate does what people do with a running system: it reads the workers, the
// queues and the trainers, and cancels, retries and requeues rollouts. The server decides
// which of it a credential may do.
package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// System is a running system as one credential sees it.
type System struct {
	b        *broker.Broker
	trainer  string
	backlogs *queue.Backlogs
}

// On returns the system of an open connection. trainer is the trainer of the connection's
// credential; empty: an operator's, an admin's or a worker's credential.
func On(b *broker.Broker, trainer string) *System {
	return &System{b: b, trainer: trainer, backlogs: queue.NewBacklogs(b)}
}

// Needs of the credential for each thing to do.
const (
	readers = "want the credential of an operator (ops.nk) or of the admin (admin.nk)"
	writers = "want the credential of the trainer or of the admin (admin.nk)"
	admins  = "want the credential of the admin (admin.nk)"
)

// Rights has the reason for which the credential may not do a thing; nil: it may.
type Rights struct{ Read, Cancel, Retry, Requeue error }

// Rights asks the server for the rights of the credential.
func (s *System) Rights(ctx context.Context) (Rights, error) {
	r, err := s.b.Rights(ctx)
	if err != nil {
		return Rights{}, err
	}
	all := func(want string, subjects ...string) error {
		for _, subject := range subjects {
			if !r.May(subject) {
				return fmt.Errorf("this credential has no right to it: %s", want)
			}
		}
		return nil
	}
	of := cmp.Or(s.trainer, "*")
	return Rights{
		Read:    all(readers, "$JS.API.DIRECT.GET."+subjects.StreamWorkers, "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET."+subjects.StreamDead),
		Cancel:  all(writers, subjects.TrainerCancel(of)),
		Retry:   all(writers, subjects.Request(subjects.DefaultLane, of)),
		Requeue: all(admins, "$JS.API.STREAM.MSG.DELETE."+subjects.StreamDead, subjects.Request(0, of)),
	}, nil
}

// Workers lists the live workers by their names and instances; none if no worker has come
// yet.
func (s *System) Workers(ctx context.Context) ([]schema.Presence, error) {
	all, err := s.b.Records.Workers(ctx)
	if broker.IsMissing(err) {
		missing, merr := s.b.Streams.Missing(ctx, subjects.StreamWorkers)
		if missing || merr != nil {
			return nil, merr
		}
	}
	slices.SortFunc(all, func(a, b schema.Presence) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Instance, b.Instance))
	})
	return all, err
}

// Waits says why a request is in its trainer's queue, with a line for each reason for
// which no worker can run it.
func (s *System) Waits(ctx context.Context, q *schema.Request) (string, error) {
	var fleet schema.Fleet
	if s.trainer == "" {
		all, err := s.Workers(ctx)
		if err != nil {
			return "", err
		}
		fleet = schema.FleetOf(all)
	} else {
		t, err := s.of(q.Trainer)
		if err == nil {
			fleet, err = t.Fleet(ctx)
		}
		if err != nil {
			return "", err
		}
	}
	return fleet.Queued(q), nil
}

// Queues reads the depth and the age of all queues, and the parked requests.
func (s *System) Queues(ctx context.Context) (queue.Backlog, error) { return s.backlogs.Read(ctx) }

// Dead is a request that no worker could read.
type Dead = broker.Dead

// ErrNotFound means that there is no such dead request.
var ErrNotFound = broker.ErrNotFound

// Dead lists the newest requests that no worker could read, the oldest first, without
// their bodies.
func (s *System) Dead(ctx context.Context, limit int) ([]Dead, error) {
	return s.b.Dead.List(ctx, limit)
}

// Letter reads one of them with its body. The error wraps ErrNotFound if there is
// none.
func (s *System) Letter(ctx context.Context, seq uint64) (Dead, error) {
	return s.b.Dead.Get(ctx, seq)
}

// Trainer is a trainer with its bounds, and the announcements of its processes in the last 40 s.
type Trainer struct {
	Name      string
	Use       broker.TrainerUse // a bound of 0 is none
	Processes []broker.Control  // by shard
	Hold      *broker.Control   // nil: it holds nothing
}

// Trainers lists the trainers by their names.
func (s *System) Trainers(ctx context.Context) ([]Trainer, error) {
	names, err := s.b.Trainers.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	controls, err := s.b.Records.Controls(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]Trainer, len(names))
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(8)
	for i, name := range names {
		out[i].Name = name
		all.Go(func() (err error) {
			if out[i].Use, err = s.b.Trainers.Use(op, name); errors.Is(err, broker.ErrNotFound) {
				out[i].Name, err = "", nil // it was deleted meanwhile
			}
			if b := &out[i].Use.Bounds; b.MaxRecordBytes == broker.AnyRecordBytes {
				b.MaxRecordBytes = 0
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	for i := range controls {
		c := &controls[i]
		at, known := slices.BinarySearch(names, c.Trainer)
		switch {
		case !known:
		case c.Process != nil:
			out[at].Processes = append(out[at].Processes, *c)
		case c.Hold.All || len(c.Hold.IDs) > 0:
			out[at].Hold = c
		}
	}
	return slices.DeleteFunc(out, func(t Trainer) bool { return t.Name == "" }), nil
}
