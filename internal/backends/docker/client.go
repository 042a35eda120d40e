package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/docker/cli/cli/connhelper"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"

	"github.com/turngate/turngate/internal/kernel"
)

// dialer opens a connection to an engine.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// newClient makes a client of the engine that DOCKER_HOST names, or of the local one.
func newClient() (*client.Client, error) {
	host := os.Getenv(client.EnvOverrideHost)
	scheme, _, _ := strings.Cut(host, "://")
	var dial dialer
	var err error
	switch scheme {
	case "tcp":
		dial, err = tcpDialer()
	case "ssh":
		host, dial, err = sshDialer(host)
	case "http", "https": // the Docker client takes both, and speaks without TLS
		err = fmt.Errorf("%s is not valid: want unix://PATH, tcp://HOST:PORT or ssh://USER@HOST", scheme)
	default:
		return client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	}
	if err != nil {
		return nil, fmt.Errorf("DOCKER_HOST: %w", err)
	}
	transport := &http.Transport{}
	api, err := client.NewClientWithOpts(client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(host), client.WithScheme("http"), client.WithVersionFromEnv(), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	transport.Proxy, transport.DialContext = nil, dial // after WithHost, which sets them
	return api, nil
}

// Times after which a connection to an engine counts as broken.
const (
	connectTime = 30 * time.Second
	lifeEvery   = 5 * time.Second // the time between two signs of life
	// silentFor is the time without a sign of life from its host. A host that is alive, and
	// reads nothing for so long, counts as silent: the kernel does not tell them apart.
	silentFor = time.Minute
)

// tcpDialer returns a dialer of an engine with TLS, or without if no variable asks for it.
// The Docker client would not use it for the connections of boxes if it had TLS to do
// itself.
func tcpDialer() (dialer, error) {
	tcp := &net.Dialer{
		Timeout:         connectTime,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: lifeEvery, Interval: lifeEvery, Count: int(silentFor / lifeEvery)},
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) {
				err = kernel.GiveUpAfter(fd, silentFor)
			})
			return errors.Join(err, failed)
		},
	}
	dir, verify := os.Getenv(client.EnvOverrideCertPath), os.Getenv(client.EnvTLSVerify) != ""
	switch {
	case dir == "" && !verify:
		return tcp.DialContext, nil
	case dir == "":
		return nil, errors.New("DOCKER_TLS_VERIFY needs DOCKER_CERT_PATH, the folder with ca.pem, cert.pem and key.pem")
	case !verify:
		return nil, errors.New("DOCKER_CERT_PATH needs DOCKER_TLS_VERIFY=1: without it nothing proves that the engine is the right one")
	}
	config, err := tlsconfig.Client(tlsconfig.Options{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ExclusiveRootPools: true,
	})
	if err != nil {
		return nil, fmt.Errorf("DOCKER_CERT_PATH: %w", err)
	}
	return (&tls.Dialer{NetDialer: tcp, Config: config}).DialContext, nil
}

// maxLogins is below the number of connections that sshd lets log in at once.
const maxLogins = 4

// sshDialer returns a dialer of the engine of another host, and the address that the
// Docker client then takes. Each connection is a process of ssh, which runs `docker
// system dial-stdio` there.
func sshDialer(host string) (addr string, _ dialer, err error) {
	helper, err := connhelper.GetConnectionHelperWithSSHOpts(host, []string{
		"-T", "-a", "-x", "-S", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
		"-o", "ClearAllForwardings=yes", "-o", "ControlMaster=no", "-o", "LogLevel=ERROR",
	})
	if err != nil {
		return "", nil, fmt.Errorf("%w: want ssh://USER@HOST", err)
	}
	logins := make(chan struct{}, maxLogins)
	return helper.Host, func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case logins <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		c := &loginConn{leave: sync.OnceFunc(func() { <-logins })}
		var err error
		c.Conn, c.free, err = onThread(func() (net.Conn, error) { return helper.Dialer(ctx, network, addr) })
		if err != nil {
			c.leave()
			return nil, err
		}
		return c, nil
	}, nil
}

// onThread dials on a thread that does nothing else until free is called. The kernel kills
// a process of ssh when the thread ends that started it, and threads of local sandboxes
// end early.
func onThread(dial func() (net.Conn, error)) (_ net.Conn, free func(), err error) {
	type dialed struct {
		conn net.Conn
		err  error
	}
	done, over := make(chan dialed), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		conn, err := dial()
		done <- dialed{conn, err}
		if err == nil {
			<-over
		}
	}()
	d := <-done
	return d.conn, sync.OnceFunc(func() { close(over) }), d.err
}

// loginConn has a place among the logins until its other side has answered, and a thread
// until it is closed.
type loginConn struct {
	net.Conn
	leave, free func()
}

func (c *loginConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.leave()
	return n, err
}

func (c *loginConn) Close() error {
	c.leave()
	defer c.free()
	return c.Conn.Close()
}
