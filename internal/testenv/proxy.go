package testenv

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy under the test's control. A test can stop the bytes of a
// direction and release them later, as in a network partition that ends, delay
// them, lose whole messages of NATS, or cut the connections.
type Proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	changed chan struct{}
	stopped [2]bool // by direction: fromClient, fromServer
	latency time.Duration
	loss    [2]float64
	lost    int // messages
	conns   map[net.Conn]struct{}
	done    sync.WaitGroup
}

const (
	fromClient = iota
	fromServer
)

// NewProxy starts a proxy for target, which need not listen yet. The proxy stops
// when the test ends.
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

// URL returns the proxy's URL for clients of NATS.
func (p *Proxy) URL() string { return "nats://" + p.Addr() }

// Addr returns the proxy's host and port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

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

// chunk has bytes on their way.
type chunk struct {
	data []byte
	due  time.Time
}

// copy forwards one direction. Bytes that arrive while the direction is stopped are
// written after the release.
func (p *Proxy) copy(to, from net.Conn, direction int) {
	way := make(chan chunk, 256)
	p.done.Go(func() {
		defer to.Close()
		defer from.Close()
		for c := range way {
			p.wait(direction, c.due)
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		from.Close()
		for range way { // until the reader has ended
		}
	})
	defer close(way)
	defer func() {
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	messages := &splitter{r: bufio.NewReaderSize(from, 64<<10)}
	for {
		data, err := messages.next(func() bool { return p.loses(direction) })
		if len(data) > 0 {
			p.mu.Lock()
			due := time.Now().Add(p.latency)
			p.mu.Unlock()
			way <- chunk{data, due}
		}
		if err != nil {
			return
		}
	}
}

// loses decides about one message.
func (p *Proxy) loses(direction int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loss[direction] == 0 || rand.Float64() >= p.loss[direction] {
		return false
	}
	p.lost++
	return true
}

func (p *Proxy) wait(direction int, due time.Time) {
	if d := time.Until(due); d > 0 {
		<-time.After(d)
	}
	p.mu.Lock()
	for p.stopped[direction] {
		changed := p.changed
		p.mu.Unlock()
		<-changed
		p.mu.Lock()
	}
	p.mu.Unlock()
}

// Set stops or releases the bytes of the client and of the server. Bytes of a
// released direction arrive late by latency.
func (p *Proxy) Set(client, server bool, latency time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped, p.latency = [2]bool{client, server}, latency
	close(p.changed)
	p.changed = make(chan struct{})
}

// Lose loses this share of the messages of the client and of the server. TCP
// itself loses nothing, so these are whole messages of NATS, with their payload;
// subscriptions, pings and the like are not lost.
func (p *Proxy) Lose(client, server float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loss = [2]float64{client, server}
}

// Lost returns the number of lost messages.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Heal releases both directions, without latency or loss.
func (p *Proxy) Heal() {
	p.Lose(0, 0)
	p.Set(false, false, 0)
}

// Cut closes every connection. Buffered bytes are lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// splitter splits a direction of a connection into messages of NATS. If the
// bytes are not of that protocol, it passes them on as they are.
type splitter struct {
	r   *bufio.Reader
	raw bool
}

// next returns the bytes that have arrived, without the lost messages. Bytes may
// come with the error that ends the connection.
func (s *splitter) next(loses func() bool) ([]byte, error) {
	if s.raw {
		buf := make([]byte, 64<<10)
		n, err := s.r.Read(buf)
		return buf[:n], err
	}
	var out []byte
	for {
		start, err := s.r.Peek(1)
		if err != nil {
			return out, err
		}
		if c := start[0]; c != '+' && c != '-' && (c < 'A' || c > 'z') {
			s.raw = true // such as TLS
			return out, nil
		}
		line, err := s.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			s.raw = true
			return append(out, line...), nil
		}
		if err != nil {
			return append(out, line...), err
		}
		message := bytes.Clone(line)
		size, whole := payload(message)
		if whole {
			message = append(message, make([]byte, size)...)
			n, err := io.ReadFull(s.r, message[len(line):])
			if err != nil {
				return append(out, message[:len(line)+n]...), err
			}
		}
		if !whole || !loses() {
			out = append(out, message...)
		}
		if s.r.Buffered() == 0 || len(out) > 64<<10 {
			return out, nil
		}
	}
}

// payload returns the number of bytes after the line of a message; ok is false if
// the line is none of a message.
func payload(line []byte) (size int, ok bool) {
	fields := bytes.Fields(line)
	if len(fields) < 3 {
		return 0, false
	}
	switch string(fields[0]) {
	case "PUB", "HPUB", "MSG", "HMSG", "RMSG", "LMSG": // the last two are between servers
		n, err := strconv.Atoi(string(fields[len(fields)-1]))
		return n + 2, err == nil && n >= 0
	}
	return 0, false
}
