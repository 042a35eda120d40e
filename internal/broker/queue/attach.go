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
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout/2) // the process waits for OpTimeout, and then the reason is lost
		defer cancel()
		got, err = a.attach(op, trainer, &asked)
	}
	if m.Reply == "" { // a process has ended
		return
	}
	if err != nil {
		got = schema.Attached{Error: schema.Clip(err.Error(), 1000)}
	}
	got.V = schema.Version
	data, err := schema.Encode(&got)
	if err == nil {
		err = a.broker.BulkConn().Publish(m.Reply, data)
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
		m, err := a.broker.Messages.Last(ctx, subjects.StreamControl, subject)
		if err != nil {
			return schema.Attached{}, err
		}
		seq := uint64(0)
		if m == nil && asked.Process.Ended {
			return schema.Attached{Process: asked.Process}, nil
		}
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
			_, err = a.broker.Messages.Put(ctx, subject, &asked.Process, seq)
		}
		if errors.Is(err, broker.ErrMoved) { // another process asked at the same time
			continue
		}
		return schema.Attached{Process: asked.Process}, err
	}
}

// checkShards bounds the shards of a trainer.
func (a *attaches) checkShards(ctx context.Context, trainer string) error {
	s, err := a.broker.Streams.Open(ctx, subjects.StreamControl)
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
