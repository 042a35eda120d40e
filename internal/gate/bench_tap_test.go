package gate_test

import (
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/testenv"
)

// BenchmarkStalledTap measures one model call of 32 KB beside an operator's
// connection that subscribed to all subjects and does not read. It reports the
// p99 in microseconds with and without the connection, in turns.
func BenchmarkStalledTap(b *testing.B) {
	srv := testenv.StartNATS(b, "alpha")
	grow := growing{talk: chatTalk(), size: 32 << 10}
	gate := wholeGate(b, srv)
	call := func() error { return gate(grow.next()) }
	var took [2][]time.Duration
	const rounds = 4
	for round := range 2 * rounds {
		with := round % 2
		var tap *stalling
		if with == 1 {
			tap = stall(b, srv)
		}
		for range max(b.N/(2*rounds), 1) {
			start := time.Now()
			if err := call(); err != nil {
				b.Fatal(err)
			}
			took[with] = append(took[with], time.Since(start))
		}
		if tap != nil {
			tap.nc.Close()
		}
	}
	for i, name := range []string{"without", "with"} {
		slices.Sort(took[i])
		n := len(took[i])
		b.ReportMetric(float64(took[i][n/2].Nanoseconds())/1000, name+"-p50-µs")
		b.ReportMetric(float64(took[i][n*99/100].Nanoseconds())/1000, name+"-p99-µs")
	}
	b.ReportMetric(0, "ns/op")
}

// stalling is a connection that stops reading.
type stalling struct {
	nc      *nats.Conn
	stopped atomic.Bool
	closed  chan struct{}
}

// stall subscribes to all subjects that operators may read, then stops reading.
func stall(b *testing.B, srv testenv.NATS) *stalling {
	b.Helper()
	s := &stalling{closed: make(chan struct{})}
	key, err := nats.NkeyOptionFromSeed(srv.OpsCreds())
	if err != nil {
		b.Fatal(err)
	}
	s.nc, err = nats.Connect(srv.URL(), key, nats.CustomInboxPrefix(broker.InboxFor("ops", "ops")), nats.SetCustomDialer(s), nats.NoReconnect())
	if err != nil {
		b.Fatal(err)
	}
	for _, subject := range []string{"rollout.*.events.>", "rollout.*.live.>"} {
		if _, err := s.nc.Subscribe(subject, func(*nats.Msg) {}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.nc.Flush(); err != nil {
		b.Fatal(err)
	}
	s.stopped.Store(true)
	return s
}

func (s *stalling) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &stallingConn{Conn: c, s: s}, err
}

type stallingConn struct {
	net.Conn
	s *stalling
}

func (c *stallingConn) Read(p []byte) (int, error) {
	if c.s.stopped.Load() {
		<-c.s.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

func (c *stallingConn) Close() error {
	if c.s.stopped.CompareAndSwap(true, false) {
		close(c.s.closed)
	}
	return c.Conn.Close()
}
