package box

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Ports lists the TCP ports on which processes of the sandbox listen, without the
// forwards of the box itself.
func (c *Caller) Ports(ctx context.Context) (ports []netip.AddrPort, err error) {
	err = c.call(ctx, &header{Op: opPorts}, nil, nil, &ports)
	return ports, err
}

// Connect connects conn to a port on which a process of the sandbox listens, until both
// sides have ended or the context ends. It closes conn.
func (c *Caller) Connect(ctx context.Context, port int, conn net.Conn) error {
	defer conn.Close()
	h := &header{Op: opConnect, Port: port}
	stream, in, out, err := c.open(h)
	if err != nil {
		return err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })()
	go func() {
		if _, err := io.Copy(out.stream(frameData), conn); err == nil {
			_ = out.write(frameEOF, nil)
		} else {
			stream.Close()
		}
	}()
	return c.finish(ctx, h, in, conn, nil)
}

// dialTime bounds a connection to a port on this host.
const dialTime = 5 * time.Second

// connect carries one connection to a port of the sandbox.
func (s *server) connect(port int, in *frameReader, out *frameWriter) error {
	ports, err := s.ports()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(ports, func(a netip.AddrPort) bool { return int(a.Port()) == port })
	if i < 0 {
		return fmt.Errorf("nothing listens on port %d", port)
	}
	conn, err := net.DialTimeout("tcp", reachable(ports[i]).String(), dialTime)
	if err != nil {
		return fmt.Errorf("connect to port %d: %w", port, err)
	}
	defer conn.Close()
	go func() {
		_, err := io.Copy(conn, &dataReader{f: in})
		if err == nil {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		if err == nil { // the caller may still go away
			_, _, err = in.next()
		}
		if err != nil {
			conn.Close()
		}
	}()
	_, err = io.Copy(out.stream(frameData), conn)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// reachable returns an address of this host at which a listening socket answers.
func reachable(a netip.AddrPort) netip.AddrPort {
	switch {
	case !a.Addr().IsUnspecified():
		return a
	case a.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	default:
		return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
	}
}

// ports lists the listening sockets of the place without the forwards.
func (s *server) ports() ([]netip.AddrPort, error) {
	all, err := s.place.ports()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	own := slices.Clone(s.forwards)
	s.mu.Unlock()
	all = slices.DeleteFunc(all, func(a netip.AddrPort) bool { return slices.Contains(own, int(a.Port())) })
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}
