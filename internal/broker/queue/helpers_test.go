package queue_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/testenv"
)

// bench is a pool with helpers of this package's tests.
type bench struct {
	*testenv.Pool
	admin jetstream.JetStream // of a test that looks often
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return &bench{Pool: testenv.StartPool(t)}
}
