package front

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

// Codes of problems besides package schema's.
const (
	codeToken     = "unauthorized"
	codeNotFound  = "not_found"
	codeConflict  = "conflict"
	codeBusy      = "busy"
	codeQueueFull = "queue_full"
	codeNATS      = "nats_unreachable"
	codeMethod    = "method_not_allowed"
)

// problem is an error in the form of RFC 9457.
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// Code is the reason for programs, one of package schema or of this package.
	Code string `json:"code"`
	// Field is the path of the wrong field, such as "requests[0].limits.agent_ms".
	Field string `json:"field,omitempty"`

	after time.Duration // of Retry-After
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func problemf(status int, code, detail string) *problem {
	return &problem{Status: status, Code: code, Detail: detail}
}

// busy refuses a request that may be sent again later.
func busy(detail string) *problem {
	return &problem{Status: http.StatusTooManyRequests, Code: codeBusy, Detail: detail, after: time.Second}
}

// notFound is the answer about a rollout that is not the trainer's, whether it belongs to
// another trainer or does not exist.
func notFound(id string) *problem {
	return problemf(http.StatusNotFound, codeNotFound, "there is no rollout "+strconv.Quote(schema.Clip(id, 80)))
}

func invalidField(field, value, want string) *problem {
	e := &schema.InvalidError{Field: field, Value: schema.Clip(value, 80), Want: want}
	return &problem{Status: http.StatusBadRequest, Code: schema.CodeInvalid, Field: field, Detail: e.Error()}
}

// problemOf returns the answer about an error. An error of this host's inside is not told
// to the client; the caller logs it.
func problemOf(err error) (p *problem, inside bool) {
	var invalid *schema.InvalidError
	var large *broker.TooLargeError
	var full *broker.FullError
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p, false
	case errors.As(err, &invalid):
		return &problem{Status: http.StatusBadRequest, Code: schema.CodeInvalid, Field: invalid.Field, Detail: invalid.Error()}, false
	case errors.As(err, &large):
		return problemf(http.StatusRequestEntityTooLarge, schema.CodeTooLarge, large.Error()), false
	case errors.As(err, &tooLong):
		return problemf(http.StatusRequestEntityTooLarge, schema.CodeTooLarge, "the body has more than "+strconv.FormatInt(tooLong.Limit, 10)+" bytes"), false
	case errors.As(err, &full):
		return problemf(http.StatusInsufficientStorage, schema.CodeFull, full.Error()), false
	case errors.Is(err, queue.ErrQueueFull):
		return &problem{Status: http.StatusTooManyRequests, Code: codeQueueFull, Detail: "the queue of this trainer is full: no rollout was submitted", after: 5 * time.Second}, false
	case errors.Is(err, queue.ErrNoWorker):
		return &problem{Status: http.StatusServiceUnavailable, Code: schema.CodeNoWorker, Detail: "no worker is there", after: 5 * time.Second}, false
	case errors.Is(err, errEnding) || errors.Is(err, context.Canceled):
		return &problem{Status: http.StatusServiceUnavailable, Code: codeBusy, Detail: errEnding.Error(), after: time.Second}, false
	case errors.Is(err, broker.ErrUnreachable) || broker.IsMissing(err) || broker.Passing(err) || errors.Is(err, context.DeadlineExceeded):
		return &problem{Status: http.StatusServiceUnavailable, Code: codeNATS, Detail: "NATS does not answer at this moment", after: 2 * time.Second}, false
	default:
		return problemf(http.StatusInternalServerError, schema.CodeInternal, "the front cannot answer this request; its log has the reason"), true
	}
}

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Del("Content-Disposition") // of a file that was to be the answer
	h.Del("Content-Length")
	h.Set("Content-Type", "application/problem+json")
	if p.after > 0 {
		h.Set("Retry-After", strconv.Itoa(int(p.after.Seconds())))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	out := *p
	out.Title = http.StatusText(p.Status)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(&out) // fails if the client went away
}
