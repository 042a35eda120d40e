package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
)

// Server shows the metrics and the health of a process over HTTP.
type Server struct {
	listener net.Listener
	handler  http.Handler
	log      zerolog.Logger

	mu    sync.Mutex
	ready func() error
}

// Config configures a Server.
type Config struct {
	Address string // host:port; port 0 is a free one
	Metrics *Metrics
	Pprof   bool // serve /debug/pprof, too
	Log     zerolog.Logger
}

// errStarts is the reason of a process that has not called Ready.
var errStarts = errors.New("it starts")

// CheckAddress checks an address to listen on.
func CheckAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not valid: want an address and a port, such as 127.0.0.1:9464", address)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		return fmt.Errorf("%q is not valid: want an IP address and a port, such as 127.0.0.1:9464 or 0.0.0.0:9464", address)
	}
	return nil
}

// Loopback reports whether only processes of this host reach an address.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Listen takes the address. Call Run to serve it.
func Listen(c Config) (*Server, error) {
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	s := &Server{listener: l, log: c.Log, ready: func() error { return errStarts }}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorLog: errorLog{c.Log}}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.check(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		say(w, http.StatusOK, "ready")
	})
	if c.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	s.handler = mux
	return s, nil
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // fails if the client went away
}

// Address is the address on which the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Ready sets the check of /readyz: an error is the reason why the process cannot take
// work. Before the first call it is not ready.
func (s *Server) Ready(check func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = check
}

func (s *Server) check() error {
	s.mu.Lock()
	check := s.ready
	s.mu.Unlock()
	return check()
}

// Run serves until the context ends. When it returns, all requests have ended.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		op, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		err = srv.Shutdown(op)
		if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
	}
	if err != nil {
		_ = srv.Close()
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// endWithin bounds the time of open requests after the end of the context.
const endWithin = 10 * time.Second

// errorLog writes the errors of the handler of metrics to the log.
type errorLog struct{ log zerolog.Logger }

// Println implements promhttp.Logger.
func (l errorLog) Println(v ...any) { l.log.Warn().Msg(fmt.Sprint(v...)) }
