package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Attach asks a worker for the calls of a shard. The answer names the process that
// has them. The error says so if there is no worker.
func (t *Trainer) Attach(ctx context.Context, a *schema.Attach) (schema.Attached, error) {
	var got schema.Attached
	data, err := schema.Encode(a)
	if err != nil {
		return got, err
	}
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	m, err := t.BulkConn().RequestWithContext(op, subjects.TrainerAttach(t.tid), data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		err = ErrNoWorker
	case err == nil:
		err = schema.Decode(m.Data, &got)
	}
	if err == nil && got.Error != "" {
		err = errors.New(got.Error)
	}
	if err != nil {
		return got, fmt.Errorf("ask for the calls of shard %s of trainer %s: %w", a.Process.Shard, t.tid, broker.Reach(err))
	}
	return got, nil
}

// Heard calls handle when another process of this trainer asks whether this one
// runs, or has taken its place, until stop is called.
func (t *Trainer) Heard(instance string, handle func()) (stop func(), err error) {
	subject := subjects.ProcessInbox(t.tid, instance)
	sub, err := t.BulkConn().Subscribe(subject, func(m *nats.Msg) {
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				t.Log().Debug().Err(err).Msg("another process of this trainer was not answered")
			}
		}
		handle()
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return wire.Bounded(t.BulkConn(), sub)
}

// Runs asks another process of this trainer whether it runs. known is false if it
// did not answer, but may still run.
func (t *Trainer) Runs(ctx context.Context, instance string) (runs, known bool) {
	op, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := t.BulkConn().RequestWithContext(op, subjects.ProcessInbox(t.tid, instance), nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return false, true
	}
	return err == nil, err == nil
}

// answerWithin is the time in which a process that runs answers another one.
const answerWithin = 2 * time.Second

// Displaced tells another process of this trainer that this one has its place. The
// message may be lost: the other one asks again by itself.
func (t *Trainer) Displaced(instance string) error {
	if err := t.BulkConn().Publish(subjects.ProcessInbox(t.tid, instance), nil); err != nil {
		return fmt.Errorf("tell process %s: %w", instance, broker.Reach(err))
	}
	return nil
}

// Bounds of the requests for calls.
const (
	maxShards       = 256 // of one trainer
	maxAttaches     = 256 // that wait on one worker
	maxAttachesEach = 8   // the same, of one trainer
	attachAtOnce    = 4
)

// attaches answers the processes of trainers that ask for the calls of a shard.
type attaches struct {
	*base
	asked chan *nats.Msg

	mu      sync.Mutex
	waiting map[string]int // by trainer
}

func newAttaches(b *base) *attaches {
	return &attaches{base: b, asked: make(chan *nats.Msg, maxAttaches), waiting: map[string]int{}}
}

// onAsked queues the request of a process. One worker of the queue group gets each;
// the process repeats it.
func (a *attaches) onAsked(m *nats.Msg) {
	trainer, ok := subjects.ParseTrainerAttach(m.Subject)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[trainer] >= maxAttachesEach {
		return
	}
	select {
	case a.asked <- m:
		a.waiting[trainer]++
	default:
	}
}

// serve answers the queued requests.
func (a *attaches) serve(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for range attachAtOnce {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-a.asked:
					a.answer(ctx, m)
				}
			}
		})
	}
}

func (a *attaches) answer(ctx context.Context, m *nats.Msg) {
	trainer, _ := subjects.ParseTrainerAttach(m.Subject)
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.waiting[trainer]--; a.waiting[trainer] == 0 {
			delete(a.waiting, trainer)
		}
	}()
	var asked schema.Attach
	var got schema.Attached
	err := wire.Decode(m.Data, &asked)
	if err == nil {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		got, err = a.attach(op, trainer, &asked)
	}
	if err != nil {
		got = schema.Attached{Error: schema.Clip(err.Error(), 1000)}
	}
	got.V = schema.Version
	data, err := schema.Encode(&got)
	if err == nil {
		err = a.BulkConn().Publish(m.Reply, data)
	}
	if err != nil {
		a.log.Debug().Err(err).Str("trainer", trainer).Msg("a process of a trainer was not answered")
	}
}

// attach gives a process the calls of its shard if no other one has them, or it takes
// the other one's place.
func (a *attaches) attach(ctx context.Context, trainer string, asked *schema.Attach) (schema.Attached, error) {
	subject := subjects.Process(trainer, asked.Process.Shard)
	for {
		m, err := a.Last(ctx, subjects.StreamControl, subject)
		if err != nil {
			return schema.Attached{}, err
		}
		seq := uint64(0)
		if m == nil {
			err = a.checkShards(ctx, trainer)
		} else {
			seq = m.Sequence
			var has schema.Process
			if schema.Decode(m.Data, &has) == nil && !asked.Gets(&has) {
				return schema.Attached{Process: has, SilentMS: max(time.Since(m.Time).Milliseconds(), 0)}, nil
			}
		}
		if err == nil {
			asked.Process.V = schema.Version
			_, err = a.Put(ctx, subject, &asked.Process, seq)
		}
		if errors.Is(err, broker.ErrMoved) { // another process asked at the same time
			continue
		}
		return schema.Attached{Process: asked.Process}, err
	}
}

// checkShards bounds the shards of a trainer.
func (a *attaches) checkShards(ctx context.Context, trainer string) error {
	s, err := a.Stream(ctx, subjects.StreamControl)
	if err != nil {
		return err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subjects.ProcessesOf(trainer)))
	if err != nil {
		return fmt.Errorf("count the processes of trainer %s: %w", trainer, broker.Reach(err))
	}
	if len(info.State.Subjects) >= maxShards {
		return fmt.Errorf("trainer %s has %d shards already, which is the most", trainer, maxShards)
	}
	return nil
}
