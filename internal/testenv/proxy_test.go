package testenv_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/testenv"
)

// A proxy that loses messages loses whole ones: the connection goes on, and the
// other messages arrive unchanged and in order.
func TestAProxyLosesWholeMessages(t *testing.T) {
	srv := testenv.StartNATS(t)
	proxy := testenv.NewProxy(t, srv.URL()[len("nats://"):])
	seed, err := nats.NkeyOptionFromSeed(srv.AdminCreds())
	if err != nil {
		t.Fatal(err)
	}
	connect := func(url string) *nats.Conn {
		nc, err := nats.Connect(url, seed, nats.NoReconnect())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	hears, says := connect(srv.URL()), connect(proxy.URL())
	sub, err := hears.SubscribeSync("x.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := hears.Flush(); err != nil {
		t.Fatal(err)
	}
	proxy.Lose(0.2, 0)
	const all = 500
	for i := range all {
		m := &nats.Msg{Subject: "x.y", Data: make([]byte, 10*i), Header: nats.Header{"N": {string(rune('a' + i%26))}}}
		if err := says.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := says.Flush(); err != nil { // a ping, which is not lost
		t.Fatal(err)
	}
	proxy.Heal()
	if err := says.Publish("x.end", nil); err != nil {
		t.Fatal(err)
	}
	got, last := 0, -1
	for {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject == "x.end" {
			break
		}
		if len(m.Data) <= last {
			t.Fatalf("%d bytes after %d", len(m.Data), last)
		}
		last = len(m.Data)
		got++
	}
	if lost := proxy.Lost(); got+lost != all || lost < all/20 || lost > all/2 {
		t.Errorf("%d of %d messages arrived, %d were lost", got, all, lost)
	}
}
