package front

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// peers are the connections of clients. A trainer has maxLines of them, so that it leaves some
// for the others. WebSockets count as streams alone.
type peers struct {
	mu sync.Mutex
	of map[net.Conn]*peer
}

// peer is one connection.
type peer struct {
	mu     sync.Mutex
	tenant *tenant // of its last request; nil: none is counted
}

type peerKey struct{}

// connect is the ConnContext of the server.
func (p *peers) connect(ctx context.Context, c net.Conn) context.Context {
	one := &peer{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[c] = one
	return context.WithValue(ctx, peerKey{}, one)
}

// change is the ConnState of the server.
func (p *peers) change(c net.Conn, to http.ConnState) {
	if to != http.StateClosed && to != http.StateHijacked {
		return
	}
	p.mu.Lock()
	one := p.of[c]
	delete(p.of, c)
	p.mu.Unlock()
	if one != nil {
		_ = one.count(nil)
	}
}

// count counts the connection as one of a trainer, and not as one of another any more: a
// balancer may send the requests of several on one. Nil: of none.
func (p *peer) count(t *tenant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tenant == t {
		return nil
	}
	if t != nil {
		select {
		case t.lines <- struct{}{}:
		default:
			return busy(fmt.Sprintf("this trainer has %d connections to this front: close some", maxLines))
		}
	}
	if p.tenant != nil {
		<-p.tenant.lines
	}
	p.tenant = t
	return nil
}
