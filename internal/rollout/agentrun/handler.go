package agentrun

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/telemetry"
)

// sessionHandler is the handler that the sandbox's forward serves. It passes
// requests to the session of the current step.
type sessionHandler struct {
	session atomic.Pointer[gate.Session]
	metrics *telemetry.Rollouts
	url     string // URL in the sandbox
}

func (h *sessionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.metrics == nil {
		h.session.Load().ServeHTTP(w, r)
		return
	}
	body, answer := &countedBody{ReadCloser: r.Body}, &countedAnswer{ResponseWriter: w}
	r.Body = body
	defer func() { h.metrics.Carried(body.n, answer.n.Load()) }()
	h.session.Load().ServeHTTP(answer, r)
}

// countedBody counts the bytes of a request.
type countedBody struct {
	io.ReadCloser
	n int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	return n, err
}

// countedAnswer counts the bytes of an answer. Another goroutine than that of the
// request may write it.
type countedAnswer struct {
	http.ResponseWriter
	n atomic.Int64
}

func (a *countedAnswer) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.n.Add(int64(n))
	return n, err
}

// Unwrap is for http.ResponseController.
func (a *countedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
