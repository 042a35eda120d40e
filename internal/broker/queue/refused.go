package queue

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
)

// errPartly marks an error of Submit after which the queue has some of the
// requests.
var errPartly = errors.New("a part of the requests is on the queue")

// Refused reports whether an error of Submit means that none of its requests was
// queued by that call. After any other error some or all of them may be on the
// queue.
func Refused(err error) bool {
	if errors.Is(err, errPartly) {
		return false
	}
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == wire.CodeInProcess { // an equal message is being stored
		return false
	}
	return broker.Rejected(err) || errors.Is(err, ErrQueueFull) || errors.Is(err, broker.ErrUnreachable) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
}
