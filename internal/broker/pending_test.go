package broker

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
)

func TestOverPending(t *testing.T) {
	conn := func(id uint64, account string, pending int) *server.ConnInfo {
		return &server.ConnInfo{Cid: id, Account: account, Pending: pending}
	}
	all := []*server.ConnInfo{
		conn(1, "T_alpha", 10), conn(2, "T_alpha", 40), conn(3, "T_alpha", 60), conn(4, "T_beta", 90), conn(5, accountWorkers, 500),
	}
	var got []uint64
	for _, c := range overPending(all, 100) {
		got = append(got, c.Cid)
	}
	if fmt.Sprint(got) != "[3]" {
		t.Errorf("got %v", got)
	}
}

// heap returns the size of the objects on the heap in bytes, garbage too. It is less
// than the resident memory, of which the race detector has as much again.
func heap() int {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

// deaf connects as a client that subscribes to a subject and reads nothing.
func deaf(t *testing.T, address, seedFile, subject string) {
	t.Helper()
	seed, err := os.ReadFile(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	line, err := bufio.NewReaderSize(c, 4096).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, nonce, _ := strings.Cut(line, `"nonce":"`)
	nonce, _, _ = strings.Cut(nonce, `"`)
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		t.Fatal(err)
	}
	public, _ := pair.PublicKey()
	sig, err := pair.Sign([]byte(nonce))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "CONNECT {\"verbose\":false,\"nkey\":%q,\"sig\":%q}\r\nSUB %s 1\r\n", public, base64.RawURLEncoding.EncodeToString(sig), subject); err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsThatDoNotReadTakeLittleMemory lets a trainer send to 60 connections of
// its own that do not read.
func TestConnectionsThatDoNotReadTakeLittleMemory(t *testing.T) {
	srv, err := StartEmbedded(EmbeddedConfig{StateDir: t.TempDir(), Trainers: []string{"alpha"}, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	subject := InboxFor(RoleTrainer, "alpha") + ".x"
	const deafs = 60
	for range deafs {
		deaf(t, srv.URL(), srv.TrainerCreds("alpha"), subject)
	}
	key, err := nats.NkeyOptionFromSeed(srv.TrainerCreds("alpha"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(srv.URL(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	before, most := heap(), 0
	body := make([]byte, 1<<20)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		if err := nc.Publish(subject, body); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		most = max(most, heap()-before)
	}
	t.Logf("at most %d MB more", most>>20)
	if bound := deafs * maxPending * 3 / 2; most > bound {
		t.Errorf("%d MB more, want at most %d", most>>20, bound>>20)
	}
}
