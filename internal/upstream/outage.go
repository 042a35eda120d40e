package upstream

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// outage measures for how long an upstream has answered nothing.
type outage struct {
	mu    sync.Mutex
	ever  bool      // it has answered a call
	since time.Time // of the first failure after the newest answer; zero: there was none
}

// mostPause bounds the time between two tries of a call, and so the time for which a
// call waits although the upstream is back.
const mostPause = 15 * time.Second

// over notes an answer.
func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ever, o.since = true, time.Time{}
}

// goesOn notes a failure. It returns the time until the next try, which grows with the
// outage.
func (o *outage) goesOn(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
	return min(now.Sub(o.since)/4, mostPause)
}

// answered reports whether the upstream has ever answered a call.
func (o *outage) answered() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ever
}

// away reports whether a failure may be that of an upstream which answers no call: it
// cannot be reached, does not answer, or says that it is overloaded or broken. A refusal
// of one request, or of a key, is no outage.
func away(err error, f *schema.Fault) bool {
	var no *refusal
	if !errors.As(err, &no) {
		return f.Code == schema.CodeUpstream && schema.RetryableStatus(f.Status)
	}
	return schema.RetryableStatus(no.status) && no.status != http.StatusNotImplemented && no.status != http.StatusHTTPVersionNotSupported
}

// otherPause is the time between two tries of a call to a server that has no route of
// an upstream: it may be a proxy in front of an upstream that starts.
const otherPause = 5 * time.Second

// otherServer reports whether an error is the answer of a server of another kind: it has no
// such route, or does not speak HTTP.
func otherServer(err error) bool {
	var no *refusal
	var f *schema.Fault
	switch {
	case errors.As(err, &no):
		return no.status == http.StatusNotImplemented || no.status == http.StatusMethodNotAllowed ||
			no.status == http.StatusNotFound && no.param != "model" && !strings.Contains(strings.ToLower(no.message), "model")
	case errors.As(err, &f):
		return strings.Contains(f.Message, "malformed HTTP") || strings.Contains(f.Message, "server gave HTTP response to HTTPS client")
	default:
		return false
	}
}

// paced returns the fault of a failed call with the time until the next try. The fault
// of an upstream that never answered and is a server of another kind is a bad answer.
func (u *Upstream) paced(err error) error {
	var f *schema.Fault
	if !errors.As(err, &f) || f.Code == schema.CodeAborted {
		return err
	}
	switch {
	case f.Code == schema.CodeBadAnswer:
		return err
	case !u.outage.answered() && otherServer(err):
		f = badAnswer("the server at %s does not answer as an upstream does: %s", u.base, f.Message)
		f.RetryAfterMS = otherPause.Milliseconds()
		return f
	case !away(err, f):
		return err
	}
	fault := *f
	fault.RetryAfterMS = max(f.RetryAfterMS, u.outage.goesOn(time.Now()).Milliseconds())
	return &fault
}
