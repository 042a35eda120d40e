package modelcall_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.ServerGoroutines()...) }

// bench has both sides of the calls of trainer alpha.
type bench struct {
	nats   testenv.NATS
	client *modelcall.Client
	server *modelcall.Server
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{nats: testenv.StartNATS(t, "alpha")}
	var err error
	b.client, err = modelcall.NewClient(b.nats.Worker(t, "w1"), "w1", "i1")
	harness.Must(t, err)
	t.Cleanup(b.client.Close)
	b.server, err = modelcall.NewServer(b.nats.Trainer(t, "alpha"), "alpha")
	harness.Must(t, err)
	return b
}
