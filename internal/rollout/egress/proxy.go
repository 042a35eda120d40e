package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/schema"
)

// Bounds of one proxy.
const (
	maxOpen     = 128  // concurrent connections; further ones get 503
	maxReported = 1000 // connections with events; further ones are only counted
	dialTimeout = 20 * time.Second
	maxHeaders  = 64 << 10 // bytes of a response's headers; the server bounds request headers
)

// Proxy is an http.Handler that connects one rollout to allowed hosts.
type Proxy struct {
	emit     func(*schema.NetEvent)
	resolver *net.Resolver
	open     chan struct{}
	plain    *httputil.ReverseProxy
	running  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	policy  *Policy
	phase   string
	life    context.Context // lifetime of the phase's connections
	end     context.CancelFunc
	number  int
	omitted int64
}

// New makes a proxy that allows nothing until Enter. It calls emit when a
// connection begins, is refused and ends; these calls may overlap.
func New(emit func(*schema.NetEvent)) *Proxy {
	p := &Proxy{emit: emit, resolver: net.DefaultResolver, open: make(chan struct{}, maxOpen), policy: &Policy{}}
	p.life, p.end = context.WithCancel(context.Background())
	p.plain = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.Host = r.In.URL.Host },
		Transport:     &http.Transport{DialContext: p.dialPlain, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeaders, ResponseHeaderTimeout: 5 * time.Minute},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "turngate: "+err.Error(), http.StatusBadGateway)
		},
	}
	return p
}

// Enter begins a phase with its allowlist and closes the connections of the
// phase before.
func (p *Proxy) Enter(phase string, policy *Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
	p.policy, p.phase = policy, phase
	p.life, p.end = context.WithCancel(context.Background())
	if p.closed {
		p.end()
	}
}

// Close closes all connections and waits for their end.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.policy = &Policy{}
	p.end()
	omitted, number := p.omitted, p.number
	p.mu.Unlock()
	p.running.Wait()
	if omitted > 0 {
		p.emit(&schema.NetEvent{Number: number, Ended: true, Omitted: omitted})
	}
}

// conn is one requested connection.
type conn struct {
	p      *Proxy
	policy *Policy
	life   context.Context
	event  schema.NetEvent
	shown  bool
	start  time.Time
	sent   atomic.Int64
	got    atomic.Int64
}

// begin registers a connection. It returns nil if the proxy is closed.
func (p *Proxy) begin(host string, port int) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.number++
	c := &conn{p: p, policy: p.policy, life: p.life, start: time.Now(), shown: p.number <= maxReported}
	c.event = schema.NetEvent{Number: p.number, Phase: p.phase, Host: schema.Clip(host, 256), Port: port}
	if !c.shown {
		p.omitted++
	}
	p.running.Add(1)
	return c
}

func (c *conn) say(change func(*schema.NetEvent)) {
	change(&c.event)
	if c.shown {
		e := c.event
		c.p.emit(&e)
	}
}

func (c *conn) refuse(why string) {
	c.say(func(e *schema.NetEvent) { e.Allowed, e.Ended, e.Reason = false, true, schema.Clip(why, 500) })
}

func (c *conn) ended(err error) {
	c.say(func(e *schema.NetEvent) {
		e.Ended, e.Sent, e.Got, e.MS = true, c.sent.Load(), c.got.Load(), time.Since(c.start).Milliseconds()
		if err != nil {
			e.Reason = schema.Clip(err.Error(), 500)
		}
	})
}

// refusedError means that the allowlist does not permit a connection.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

// dial connects to an allowed host. It resolves a name once, checks each
// address and connects to a checked one.
func (c *conn) dial(ctx context.Context, host string, port int) (net.Conn, error) {
	var addrs []netip.Addr
	var refused error
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" || !c.policy.Address(a) {
			return nil, &refusedError{fmt.Sprintf("%s is not on the allowlist", host)}
		}
		addrs = []netip.Addr{a.Unmap()}
	} else {
		if !c.policy.Host(host) {
			return nil, &refusedError{fmt.Sprintf("%s is not on the allowlist", host)}
		}
		found, err := c.p.resolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", host, err)
		}
		for _, a := range found {
			if err := c.policy.reachable(a); err != nil {
				refused = &refusedError{fmt.Sprintf("%s: %v", host, err)}
				continue
			}
			addrs = append(addrs, a.Unmap())
		}
	}
	if len(addrs) == 0 {
		return nil, refused
	}
	var errs []error
	for _, a := range addrs {
		out, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		if err == nil {
			c.say(func(e *schema.NetEvent) { e.Allowed, e.Address = true, a.String() })
			return out, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case p.open <- struct{}{}:
		defer func() { <-p.open }()
	default:
		http.Error(w, fmt.Sprintf("turngate: more than %d connections at once", maxOpen), http.StatusServiceUnavailable)
		return
	}
	target, usual := r.Host, 0
	if r.Method != http.MethodConnect {
		if r.URL.Scheme != "http" || r.URL.Host == "" {
			http.Error(w, "turngate: this is a proxy: want CONNECT host:port, or a request of an http:// URL", http.StatusBadRequest)
			return
		}
		target, usual = r.URL.Host, 80
	}
	host, port, err := split(target, usual)
	if err != nil {
		http.Error(w, "turngate: "+err.Error(), http.StatusBadRequest)
		return
	}
	c := p.begin(host, port)
	if c == nil {
		http.Error(w, "turngate: the rollout has ended", http.StatusServiceUnavailable)
		return
	}
	defer p.running.Done()
	ctx, cancel := context.WithTimeout(c.life, dialTimeout)
	defer cancel()
	out, err := c.dial(ctx, host, port)
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		c.refuse(refused.reason)
		http.Error(w, "turngate: "+refused.reason, http.StatusForbidden)
		return
	case err != nil:
		c.ended(err)
		http.Error(w, "turngate: "+err.Error(), http.StatusBadGateway)
		return
	}
	defer out.Close()
	out = &counted{Conn: out, c: c}
	defer context.AfterFunc(c.life, func() { _ = out.Close() })()
	if r.Method == http.MethodConnect {
		c.ended(tunnel(c.life, w, out))
		return
	}
	handed := &handed{conn: out}
	ctx, cancelPlain := context.WithCancel(context.WithValue(r.Context(), handedKey{}, handed))
	defer cancelPlain()
	defer c.ended(nil) // the reverse proxy panics if the client disconnects
	p.plain.ServeHTTP(w, r.WithContext(ctx))
}

// split parses host:port. usual is the default port; 0: the port is required.
func split(target string, usual int) (host string, port int, err error) {
	bad := fmt.Errorf("%.300q is not host:port", target)
	host, text, err := net.SplitHostPort(target)
	if err != nil {
		if usual == 0 || strings.Count(target, ":") > 0 && !strings.HasPrefix(target, "[") {
			return "", 0, bad
		}
		host, text = strings.Trim(target, "[]"), strconv.Itoa(usual)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 || host == "" || len(host) > 253 {
		return "", 0, bad
	}
	return host, port, nil
}

// tunnel copies bytes both ways until either side ends.
func tunnel(life context.Context, w http.ResponseWriter, out net.Conn) error {
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	defer in.Close()
	defer context.AfterFunc(life, func() { _ = in.Close() })()
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return nil // the client has disconnected
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(out, buffered.Reader)
		if half, ok := out.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(in, out)
	_ = in.Close()
	_ = out.Close()
	<-sent
	return nil
}

// handed passes one checked connection to the transport. Only the first dial
// gets it.
type handed struct {
	mu   sync.Mutex
	conn net.Conn
}

type handedKey struct{}

func (p *Proxy) dialPlain(ctx context.Context, _, _ string) (net.Conn, error) {
	h, ok := ctx.Value(handedKey{}).(*handed)
	if !ok {
		return nil, errors.New("no connection was allowed")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn == nil {
		return nil, errors.New("the connection was used")
	}
	out := h.conn
	h.conn = nil
	return out, nil
}

// counted counts the bytes read and written of a connection.
type counted struct {
	net.Conn
	c *conn
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.c.got.Add(int64(n))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.c.sent.Add(int64(n))
	return n, err
}

// CloseWrite closes the sending half.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
