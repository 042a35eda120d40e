package broker

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
)

// UnreadableRecord reports that the newest message of a rollout's subject is not
// a valid record of that rollout. Reading it again does not help.
type UnreadableRecord struct {
	Subject string
	Seq     uint64
	Data    []byte
	Why     error
}

func (e *UnreadableRecord) Error() string {
	return fmt.Sprintf("read %s at sequence %d: %v", e.Subject, e.Seq, e.Why)
}

func (e *UnreadableRecord) Unwrap() error { return e.Why }

// Rejected reports whether the write was rejected, so that nothing was stored.
func Rejected(err error) bool {
	var api *jetstream.APIError
	var large *TooLargeError
	var full *FullError
	var invalid *schema.InvalidError
	var bad *UnreadableRecord
	return errors.Is(err, ErrMoved) || errors.As(err, &api) || errors.As(err, &large) || errors.As(err, &full) || errors.As(err, &invalid) || errors.As(err, &bad)
}

// Passing reports whether a refusal is temporary, so that the same write may
// succeed later.
func Passing(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case wire.CodeBatchesOpen, wire.CodeBatchPartial, wire.CodeInProcess, wire.CodeStoreFailed, wire.CodeResources, wire.CodeNoStream:
		return true
	default:
		return api.Code >= 500
	}
}

// ErrMoved means that the record was changed by another writer.
var ErrMoved = errors.New("the record was changed by another")

// IsMissing reports whether an operation failed since a stream or consumer does
// not exist, or has no leader at this moment.
func IsMissing(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrConsumerNotFound)
}

// FullError reports that a bound of a trainer is reached.
type FullError struct {
	Trainer string
	What    string // such as "bundles"
	Limit   int64  // bytes
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the %s of trainer %s have reached their bound of %d bytes", e.What, e.Trainer, e.Limit)
}

// IsFull reports whether a stream refused a message since one of its limits is
// reached.
func IsFull(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == wire.CodeStoreFailed && strings.HasPrefix(api.Description, "maximum ")
}

// ErrUnreachable is returned while the connection to NATS is lost. The connection
// recovers by itself.
var ErrUnreachable = errors.New("NATS cannot be reached at this moment")

// Reach turns the client's error for publishing without a connection (a full
// reconnect buffer, since there is none) into ErrUnreachable.
func Reach(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return ErrUnreachable
	}
	return err
}

// TooLargeError reports a message or file above its size limit. It is returned
// before anything is sent.
type TooLargeError struct {
	What  string
	Size  uint64 // bytes
	Limit int64  // bytes
	Name  string // of the limit, such as the server's max_payload; default "the limit"
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, %s is %d", e.What, e.Size, cmp.Or(e.Name, "the limit"), e.Limit)
}

// ErrNotFound is returned for an object, a result, a state or a dead message that
// does not exist.
var ErrNotFound = errors.New("not found")
