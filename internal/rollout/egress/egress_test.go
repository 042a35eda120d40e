package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/rollout/egress"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func policy(t *testing.T, entries ...string) *egress.Policy {
	t.Helper()
	p, err := egress.NewPolicy(entries)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNames(t *testing.T) {
	p := policy(t, "pypi.org", "*.debian.org")
	for name, want := range map[string]bool{
		"pypi.org": true, "PyPI.org.": true, "x.pypi.org": false, "pypi.org.evil.net": false, "deb.debian.org": true, "a.b.debian.org": true,
		"debian.org": false, "notdebian.org": false, ".debian.org": false, "": false,
	} {
		if got := p.Host(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// TestAddressesOfTheWorkersNetworks checks that such addresses are reached only
// if an entry names them or a range within their network.
func TestAddressesOfTheWorkersNetworks(t *testing.T) {
	for _, tt := range []struct {
		entries, address string
		want             bool
	}{
		{"8.8.8.8", "8.8.8.8", true}, {"8.8.8.0/24", "8.8.8.8", true}, {"0.0.0.0/0", "8.8.8.8", true}, {"pypi.org", "8.8.8.8", false},
		{"0.0.0.0/0", "127.0.0.1", false}, {"0.0.0.0/0", "10.1.2.3", false}, {"0.0.0.0/0", "169.254.169.254", false}, {"::/0", "::1", false}, {"::/0", "fd00::1", false},
		{"10.0.0.0/8", "10.1.2.3", true}, {"10.1.2.3", "10.1.2.3", true}, {"10.1.2.3", "::ffff:10.1.2.3", true}, {"127.0.0.1", "127.0.0.1", true}, {"::1", "::1", true},
		{"::/0", "64:ff9b::7f00:1", false}, {"::/0", "2002:7f00:1::", false}, {"8.0.0.0/5", "10.1.2.3", false},
	} {
		if got := policy(t, tt.entries).Address(netip.MustParseAddr(tt.address)); got != tt.want {
			t.Errorf("%s with %s: %v, want %v", tt.address, tt.entries, got, tt.want)
		}
	}
}

// bench is a proxy with a server in the worker's network behind it.
type bench struct {
	proxy  *egress.Proxy
	front  *httptest.Server
	server *httptest.Server
	client *http.Client

	mu     sync.Mutex
	events []schema.NetEvent
}

func newBench(t *testing.T, entries ...string) *bench {
	t.Helper()
	b := &bench{}
	b.proxy = egress.New(func(e *schema.NetEvent) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, *e)
	})
	b.proxy.Enter("agent", policy(t, entries...))
	b.front = httptest.NewServer(b.proxy)
	b.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s", r.Host) }))
	at, err := url.Parse(b.front.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := b.server.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(at)
	b.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		b.proxy.Close()
		b.front.Close()
		b.server.Close()
	})
	return b
}

func (b *bench) last(t *testing.T) schema.NetEvent {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) == 0 {
		t.Fatal("there is no event")
	}
	return b.events[len(b.events)-1]
}

func TestCONNECT(t *testing.T) {
	b := newBench(t, "127.0.0.1")
	res, err := b.client.Get(b.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.HasPrefix(string(body), "hello from 127.0.0.1:") {
		t.Fatalf("%q, %v", body, err)
	}
	begun := b.last(t)
	if !begun.Allowed || begun.Host != "127.0.0.1" || begun.Address != "127.0.0.1" || begun.Port == 0 || begun.Phase != "agent" || begun.Ended {
		t.Errorf("begun: %+v", begun)
	}
	b.proxy.Close() // while a connection is open
	if ended := b.last(t); !ended.Ended || ended.Number != begun.Number || ended.Sent == 0 || ended.Got == 0 {
		t.Errorf("ended: %+v", ended)
	}
}

func TestPlainHTTP(t *testing.T) {
	b := newBench(t, "127.0.0.1")
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, r.Header.Get("Proxy-Authorization"))
	}))
	defer plain.Close()
	res, err := b.client.Get(plain.URL + "/a?b=c")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || string(body) != "GET /a?b=c " {
		t.Fatalf("%q, %v", body, err)
	}
	b.proxy.Close()
	if e := b.last(t); !e.Ended || !e.Allowed || e.Got == 0 {
		t.Errorf("%+v", e)
	}
}

// TestAForbiddenHost checks for status 403 and an event with the reason.
func TestAForbiddenHost(t *testing.T) {
	b := newBench(t, "localhost", "*.example.com", "0.0.0.0/0")
	for target, reason := range map[string]string{
		"localhost:" + port(t, b.server.URL): "is not public",           // allowed by name, but in the worker's network
		"127.0.0.1:443":                      "is not on the allowlist", // not public, and not named
		"[::1]:443":                          "is not on the allowlist",
		"example.com:443":                    "is not on the allowlist",
		"evil.org:443":                       "is not on the allowlist",
	} {
		if status := b.ask(t, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); status != http.StatusForbidden {
			t.Errorf("%s: status %d", target, status)
		}
		if e := b.last(t); e.Allowed || !e.Ended || !strings.Contains(e.Reason, reason) {
			t.Errorf("%s: %+v", target, e)
		}
	}
	// The host of the URL counts, not the Host header.
	if status := b.ask(t, "GET http://evil.org/ HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != http.StatusForbidden {
		t.Errorf("a request with another Host: status %d", status)
	}
}

func TestARequestThatIsNotForAProxy(t *testing.T) {
	b := newBench(t, "127.0.0.1")
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET https://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET ftp://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT 127.0.0.1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "CONNECT 127.0.0.1:0 HTTP/1.1\r\nHost: 127.0.0.1:0\r\n\r\n", "CONNECT 127.0.0.1:99999 HTTP/1.1\r\nHost: 127.0.0.1:99999\r\n\r\n",
	} {
		if status := b.ask(t, text); status != http.StatusBadRequest {
			t.Errorf("%q: status %d", text, status)
		}
	}
}

// TestAPhaseEndsItsConnections changes to a phase without an allowlist.
func TestAPhaseEndsItsConnections(t *testing.T) {
	b := newBench(t, "127.0.0.1")
	c := b.dial(t)
	target := strings.TrimPrefix(b.server.URL, "https://")
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("status %d", res.StatusCode)
	}
	b.proxy.Enter("verify", policy(t))
	if n, err := r.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came through a connection of the phase before", n)
	}
	if status := b.ask(t, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); status != http.StatusForbidden {
		t.Errorf("in a phase without hosts: status %d", status)
	}
	b.proxy.Close() // the end of the first connection has its event now
	of := func(phase string) int {
		return slices.IndexFunc(b.events, func(e schema.NetEvent) bool { return e.Phase == phase && e.Ended })
	}
	if of("agent") < 0 || of("verify") < 0 {
		t.Errorf("%+v", b.events)
	}
}

// TestVeryManyConnections checks that connections beyond MaxReported are counted
// without events of their own.
func TestVeryManyConnections(t *testing.T) {
	b := newBench(t)
	for range egress.MaxReported + 5 {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodConnect, "http://evil.org:443", nil)
		r.Host = "evil.org:443"
		b.proxy.ServeHTTP(w, r)
		if w.Code != http.StatusForbidden {
			t.Fatalf("status %d", w.Code)
		}
	}
	b.proxy.Close()
	b.mu.Lock()
	n := len(b.events)
	b.mu.Unlock()
	if e := b.last(t); n != egress.MaxReported+1 || e.Omitted != 5 {
		t.Errorf("%d events, the last %+v", n, e)
	}
}

func port(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strconv.Atoi(u.Port()); err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func (b *bench) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", b.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a raw request and returns the status of the response.
func (b *bench) ask(t *testing.T, text string) int {
	t.Helper()
	c := b.dial(t)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	res.Body.Close()
	return res.StatusCode
}
