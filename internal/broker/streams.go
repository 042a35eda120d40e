package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/subjects"
)

// Streams makes the streams that all trainers share, and opens any stream.
type Streams struct {
	*link
	streams sync.Map                      // of jetstream.Stream, by name
	setup   atomic.Pointer[StreamsConfig] // configuration of the last Setup
	opener  atomic.Pointer[opener]        // nil: missing streams of a trainer stay missing
}

// Open returns the handle of a stream. It asks the server once per stream, and
// makes a missing stream of a trainer again.
func (h *Streams) Open(ctx context.Context, name string) (jetstream.Stream, error) {
	if s, ok := h.streams.Load(name); ok {
		if stream, ok := s.(jetstream.Stream); ok {
			return stream, nil
		}
	}
	ask := func() (jetstream.Stream, error) {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		defer cancel()
		return h.js.Stream(op, name)
	}
	s, err := ask()
	if h.reopen(ctx, name, err) {
		s, err = ask()
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, Reach(err))
	}
	h.streams.Store(name, s)
	return s, nil
}

// Fresh is Open with the state of the stream at this moment, which costs a
// request.
func (h *Streams) Fresh(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := h.js.Stream(ctx, name)
	if h.reopen(ctx, name, err) {
		s, err = h.js.Stream(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, Reach(err))
	}
	return s, nil
}

// Missing reports whether the server has no stream of a name. The first worker makes the
// streams that all trainers share.
func (h *Streams) Missing(ctx context.Context, name string) (bool, error) {
	_, err := h.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for stream %s: %w", name, Reach(err))
	}
	return false, nil
}

// find returns the configuration of a stream. A request without an answer is
// repeated.
func (h *Streams) find(ctx context.Context, name string) (jetstream.StreamConfig, error) {
	return untilAnswered(ctx, func(ctx context.Context) (jetstream.StreamConfig, error) {
		return configOf(h.js.Stream(ctx, name))
	})
}

// Setup creates the missing ones of the streams and consumers that all trainers
// share, and updates existing ones to this configuration. Every worker may call
// it.
func (h *Streams) Setup(ctx context.Context, c StreamsConfig) error {
	c, err := h.filled(ctx, c)
	if err != nil {
		return err
	}
	h.setup.Store(&c)
	for _, s := range streamConfigs(c) {
		if err := h.setUp(ctx, s); err != nil {
			return fmt.Errorf("set up stream %s: %w", s.Name, err)
		}
	}
	if _, err := h.js.CreateOrUpdateConsumer(ctx, subjects.StreamPlain, consumerConfig(subjects.ConsumerPlain, subjects.Requests, c)); err != nil {
		return fmt.Errorf("set up the consumer of %s: %w", subjects.Requests, err)
	}
	return nil
}

// setUp creates a stream, or updates one that differs. A stream for which the
// server has no more room keeps its size. A cluster refuses every update after its streams have
// reserved all room, so setUp sends only updates that change the stream.
func (h *Streams) setUp(ctx context.Context, want jetstream.StreamConfig) error {
	there, err := h.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = h.sized(ctx, want, h.js.CreateOrUpdateStream)
		return err
	}
	if err != nil {
		return err
	}
	is := there.CachedInfo().Config
	if sameConfig(is, want) {
		return nil
	}
	if _, err = h.js.UpdateStream(ctx, want); !noRoom(err) {
		return err
	}
	if want.MaxBytes = is.MaxBytes; sameConfig(is, want) {
		return nil
	}
	_, err = h.js.UpdateStream(ctx, want)
	return err
}

// filled fills in the defaults of a configuration.
func (h *Streams) filled(ctx context.Context, c StreamsConfig) (StreamsConfig, error) {
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming()
	}
	c.Trainer = c.Trainer.or(DefaultTrainer())
	if c.Replicas == 0 {
		s, err := h.js.Stream(ctx, subjects.StreamPlain)
		switch {
		case err == nil:
			c.Replicas = s.CachedInfo().Config.Replicas
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return c, fmt.Errorf("look for stream %s: %w", subjects.StreamPlain, err)
		}
	}
	c.Replicas = cmp.Or(c.Replicas, 1)
	return c, nil
}

// sized makes a stream with put. If the server has no room for its MaxBytes,
// which it reserves, the stream gets a smaller size, which leaves most of the room
// to other streams.
func (h *Streams) sized(ctx context.Context, s jetstream.StreamConfig, put func(context.Context, jetstream.StreamConfig) (jetstream.Stream, error)) (jetstream.Stream, error) {
	wanted := s.MaxBytes
	made, err := put(ctx, s)
	for ; noRoom(err) && s.MaxBytes > minStreamBytes; made, err = put(ctx, s) {
		s.MaxBytes /= 8
	}
	if err == nil && s.MaxBytes != wanted {
		s.MaxBytes = max(s.MaxBytes/8, min(s.MaxBytes, minStreamBytes))
		if made, err = h.js.UpdateStream(ctx, s); err != nil {
			return nil, err
		}
		h.log.Info().Str("stream", s.Name).Int64("bytes", s.MaxBytes).Int64("wanted", wanted).Msg("the server has no room for a stream of the wanted size; it is smaller")
	}
	return made, err
}

// SetupWhenThere calls Setup and repeats it while the server does not answer or
// its cluster has no leader yet, until the context ends.
func (h *Streams) SetupWhenThere(ctx context.Context, c StreamsConfig) error {
	for try := 0; ; try++ {
		err := h.Setup(ctx, c)
		if err == nil || ctx.Err() != nil || Rejected(err) && !Passing(err) {
			return err
		}
		h.log.Warn().Err(err).Msg("the streams cannot be set up yet")
		if perr := wire.Pause(ctx, wire.Backoff(try)); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

// Restore creates the shared streams that the server has lost: those in memory
// after a restart, all of them after the loss of its store. The streams of a
// trainer are created when the trainer or one of its rollouts needs them.
func (h *Streams) Restore(ctx context.Context, t Timing) error { return h.Setup(ctx, h.wanted(t)) }

// wanted is the configuration of the last Setup. If there was none, existing
// streams keep theirs.
func (h *Streams) wanted(t Timing) StreamsConfig {
	if known := h.setup.Load(); known != nil {
		return *known
	}
	return StreamsConfig{Timing: t}
}

// ConsumerConfig returns the configuration of a consumer of a queue. If this
// connection has not called Setup, the consumer gets this timing.
func (h *Streams) ConsumerConfig(ctx context.Context, name, filter string, t Timing) (jetstream.ConsumerConfig, error) {
	c, err := h.filled(ctx, h.wanted(t))
	if err != nil {
		return jetstream.ConsumerConfig{}, err
	}
	return consumerConfig(name, filter, c), nil
}

// opener makes the missing streams of a trainer: a worker makes them itself, a
// trainer asks a worker.
type opener func(ctx context.Context, tid string) error

// ReopenWith sets the function that makes the missing streams of a trainer again:
// a worker makes them itself, a trainer asks a worker. Without it they stay missing.
func (h *Streams) ReopenWith(open func(ctx context.Context, tid string) error) {
	o := opener(open)
	h.opener.Store(&o)
}

// reopen makes the missing streams of the trainer that has this stream, if err
// says that the stream is missing. It returns true if the streams exist again.
func (h *Streams) reopen(ctx context.Context, stream string, err error) bool {
	open := h.opener.Load()
	tid, ok := subjects.TrainerOfStream(stream)
	if open == nil || !ok || !IsMissing(err) {
		return false
	}
	if err := (*open)(ctx, tid); err != nil {
		h.log.Debug().Err(err).Str("stream", stream).Msg("a missing stream was not made again")
		return false
	}
	return true
}

// ReopenFor is reopen for the stream that stores the messages of a subject.
func (h *Streams) ReopenFor(ctx context.Context, subject string, err error) {
	if tid, ok := subjects.TrainerOf(subject); ok {
		h.reopen(ctx, subjects.Queue(tid), err)
	}
}
