package testenv

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy under the test's control. While a direction is held its
// bytes wait and arrive late, as after a partition that heals; nothing is lost
// unless the connections are cut.
type Proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	changed chan struct{}
	hold    [2]bool // bytes of the client, bytes of the server
	latency time.Duration
	conns   map[net.Conn]struct{}
	done    sync.WaitGroup
}

const (
	fromClient = iota
	fromServer
)

// NewProxy passes on to target, which may not be there yet, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.done.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Heal()
		p.Cut()
		p.done.Wait()
	})
	return p
}

// URL is where clients of NATS find it.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.done.Go(func() { p.copy(server, client, fromClient) })
		p.done.Go(func() { p.copy(client, server, fromServer) })
	}
}

// copy carries one direction. What was read while the direction is held is
// written when it is open again.
func (p *Proxy) copy(to, from net.Conn, direction int) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.wait(direction)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) wait(direction int) {
	p.mu.Lock()
	latency := p.latency
	for p.hold[direction] {
		changed := p.changed
		p.mu.Unlock()
		<-changed
		p.mu.Lock()
	}
	p.mu.Unlock()
	if latency > 0 {
		<-time.After(latency)
	}
}

// Set holds the clients' or the server's bytes, or lets them through again, each
// piece after latency.
func (p *Proxy) Set(client, server bool, latency time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.latency = [2]bool{client, server}, latency
	close(p.changed)
	p.changed = make(chan struct{})
}

// Heal lets everything through.
func (p *Proxy) Heal() { p.Set(false, false, 0) }

// Cut ends every connection; what was held is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}
