package agentrun

import (
	"context"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http/httputil"
	"net/url"
	"strings"
)

// routeTo returns the URL at which the agent of a black box reaches an upstream. A
// loopback address means the worker's host: the sandbox, which has its own loopback
// device, gets a port that leads there.
func (r *Runs) routeTo(ctx context.Context, upstream string) (string, error) {
	at, err := url.Parse(upstream)
	if err != nil {
		return "", fmt.Errorf("the URL of the upstream: %w", err)
	}
	if !loopback(at.Hostname()) {
		return upstream, nil
	}
	if r.handler.url == "" {
		proxy := &httputil.ReverseProxy{
			Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(at) },
			ErrorLog:      stdlog.New(io.Discard, "", 0), // the agent could fill the worker's log
			FlushInterval: -1,                            // pieces of a streamed answer reach the agent as they arrive
		}
		if r.handler.url, err = r.Place.Main.Forward(ctx, proxy); err != nil {
			return "", err
		}
	}
	return r.handler.url, nil
}

// loopback reports whether a host is this host itself.
func loopback(host string) bool {
	if host = strings.ToLower(strings.TrimSuffix(host, ".")); host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback() || ip.IsUnspecified()
	}
	return false
}
