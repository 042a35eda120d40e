package broker

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/wire"
)

// Insist repeats try until it succeeds, the server refuses it for good, the
// connection is closed or the context ends. The log names the request by what.
func Insist[T any](ctx context.Context, log *zerolog.Logger, what string, try func(context.Context) (T, error)) (T, error) {
	for n := 0; ; n++ {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		got, err := try(op)
		cancel()
		if err == nil || Rejected(err) && !Passing(err) || errors.Is(err, nats.ErrConnectionClosed) {
			return got, err
		}
		level := zerolog.DebugLevel
		if n == wire.WarnAfter {
			level = zerolog.WarnLevel
		}
		log.WithLevel(level).Err(err).Str("what", what).Msg("the server is asked again")
		if perr := wire.Pause(ctx, wire.Backoff(n)); perr != nil {
			return got, errors.Join(err, perr)
		}
	}
}

// repeatFor bounds the repetitions of a request.
const repeatFor = 6 * wire.OpTimeout

// untilAnswered calls try, with a limit of wire.OpTimeout, until the server answers,
// ctx ends or repeatFor is over.
func untilAnswered[T any](ctx context.Context, try func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, repeatFor)
	defer cancel()
	for {
		op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
		got, err := try(op)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return got, err
		}
	}
}
