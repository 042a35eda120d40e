package wire_test

import (
	"net"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/testenv"
)

// TestASubscriptionThatFailsIsGone subscribes while the server is away. Otherwise the
// subscription would begin with the next connection.
func TestASubscriptionThatFailsIsGone(t *testing.T) {
	testenv.Slow(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	nc, err := nats.Connect("nats://"+address, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := wire.Subscribe(nc, "x", func(*nats.Msg) {}); err == nil {
		t.Error("no error")
	}
	if n := nc.NumSubscriptions(); n != 0 {
		t.Errorf("%d subscriptions", n)
	}
}
