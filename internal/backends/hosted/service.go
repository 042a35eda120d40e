// Package hosted has the parts that the backends of rented sandboxes share: Backend, which
// leaves the requests to a Provider, the client of a control plane with JSON over HTTP, the
// bounds of a process there, and the line to far.Serve over the input and output of commands in
// such a sandbox.
package hosted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/masks"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
)

// Service is the control plane of a service.
type Service struct {
	Name   string // in errors, such as "E2B"
	URL    string
	Header http.Header // of each request; it has the key
	Client *http.Client
}

// Client returns a client that follows no redirect: the key of the account and the token
// of a sandbox would go to another host, or a request to one that only this host reaches. An
// answer that is no success has neither of them.
func Client(by http.RoundTripper) *http.Client {
	return &http.Client{Transport: &masks.Transport{Base: by}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Bounds of the silence of a connection that many requests share. Together they are below the
// time after which a line leaves its stream, so that the next one has another connection.
const (
	pingAfter = 15 * time.Second
	pingTime  = 15 * time.Second
)

// Transport returns a transport that gives up a silent connection of HTTP/2.
func Transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTime}
	return t
}

// CheckURL returns an error that names the variable if its value is no URL of a service.
// Empty: there is none.
func CheckURL(variable, value, example string) error {
	if value == "" {
		return nil
	}
	if u, err := neturl.Parse(value); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%s: the value is not valid: want a URL such as %s", variable, example) // it may have a key
	}
	return nil
}

// RefusedError is an answer of a service that is no success.
type RefusedError struct {
	Service string
	Status  int
	Message string
	After   time.Duration // the wait that the service asks for; 0: none
}

func (e *RefusedError) Error() string {
	todo := ""
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		todo = fmt.Sprintf(" (look at the key of %s)", e.Service)
	}
	return fmt.Sprintf("%s answers %d: %s%s", e.Service, e.Status, e.Message, todo)
}

// IsGone reports whether the service has no such sandbox.
func IsGone(err error) bool { return HasStatus(err, http.StatusNotFound) }

// HasStatus reports whether an error is a refusal with this status.
func HasStatus(err error, status int) bool {
	var no *RefusedError
	return errors.As(err, &no) && no.Status == status
}

// MayHave reports whether a service may have done its work although a request for it
// failed.
func MayHave(err error) bool {
	var no *RefusedError
	return err != nil && (!errors.As(err, &no) || no.Status >= 500)
}

// ForNow reports whether another try may succeed: the service refuses nothing, or for now
// only.
func ForNow(err error) bool {
	return MayHave(err) || HasStatus(err, http.StatusTooManyRequests)
}

// Bounds of a request to the control plane.
const (
	askTime   = time.Minute
	maxAnswer = 8 << 20
)

// MostPages bounds the pages of a list of sandboxes.
const MostPages = 1000

// Ask sends one request. An answer that is no success gives a *RefusedError.
func (s *Service) Ask(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("%s gives no answer within %s", s.Name, askTime))
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("write a request to %s: %w", s.Name, err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.URL, "/")+path, body)
	if err != nil {
		return nil, fmt.Errorf("write a request to %s: %w", s.Name, err)
	}
	req.Header = s.Header.Clone()
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", s.Name, CauseOf(ctx, err))
	}
	defer res.Body.Close()
	data, err := s.Read(res)
	if err != nil {
		return nil, err
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return nil, fmt.Errorf("read the answer of %s: %w", s.Name, rawjson.Plain(err))
		}
	}
	return res.Header, nil
}

// Read reads the body of an answer. One that is no success gives a *RefusedError.
func (s *Service) Read(res *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.Name, err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return nil, s.refused(res, data)
	}
	data, _ = masks.OfHeader(s.Header).Bytes(data) // it may have the text of an error
	return data, nil
}

// refused makes the error of an answer.
func (s *Service) refused(res *http.Response, body []byte) error {
	var said struct {
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"` // a text, or a list of problems
	}
	text := ""
	if json.Unmarshal(body, &said) == nil {
		if text = said.Message; text == "" && json.Unmarshal(said.Detail, &text) != nil {
			text = string(said.Detail)
		}
	}
	if text == "" {
		text = string(body[:min(len(body), far.MaxSays)])
	}
	return &RefusedError{s.Name, res.StatusCode, plain.Line(text, far.MaxSays), retryAfter(res.Header.Get("Retry-After"), time.Now())}
}

// maxAfter bounds the wait that an answer may ask for.
const maxAfter = 5 * time.Minute

// retryAfter reads the value of the header of this name: seconds or a time.
func retryAfter(text string, now time.Time) time.Duration {
	var d time.Duration
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 {
		d = time.Duration(min(seconds, maxAfter.Seconds()) * float64(time.Second))
	} else if at, err := http.ParseTime(text); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxAfter)
}
