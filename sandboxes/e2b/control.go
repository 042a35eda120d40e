package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes/far"
)

// control is the client of E2B's control plane.
type control struct {
	url, key string
	client   *http.Client
}

// newSandbox is the body of a request for a sandbox.
type newSandbox struct {
	Template string            `json:"templateID"`
	Timeout  int64             `json:"timeout"` // in seconds
	Metadata map[string]string `json:"metadata"`
	Secure   bool              `json:"secure"`                // envd asks for a token
	Internet bool              `json:"allow_internet_access"` // false: no way out
}

// made is a sandbox as the control plane answers it.
type made struct {
	ID       string            `json:"sandboxID"`
	Token    string            `json:"envdAccessToken"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata"`
}

// refusedError is an answer of E2B that is no success.
type refusedError struct {
	status  int
	message string
	after   time.Duration // the wait that E2B asks for; 0: none
}

func (e *refusedError) Error() string {
	todo := ""
	if e.status == http.StatusUnauthorized || e.status == http.StatusForbidden {
		todo = " (look at the key of E2B)"
	}
	return fmt.Sprintf("E2B answers %d: %s%s", e.status, e.message, todo)
}

// isGone reports whether E2B has no such sandbox.
func isGone(err error) bool { return hasStatus(err, http.StatusNotFound) }

func hasStatus(err error, status int) bool {
	var no *refusedError
	return errors.As(err, &no) && no.status == status
}

// Bounds of a request to the control plane.
const (
	askTime   = time.Minute
	maxAnswer = 8 << 20
)

// ask sends one request. An answer that is no success gives a *refusedError.
func (c *control) ask(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("E2B gives no answer within %s", askTime))
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("write a request to E2B: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.url, "/")+path, body)
	if err != nil {
		return nil, fmt.Errorf("write a request to E2B: %w", err)
	}
	req.Header.Set("X-Api-Key", c.key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask E2B: %w", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of E2B: %w", err)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return nil, refused(res, data)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			return nil, fmt.Errorf("read the answer of E2B: %w", err)
		}
	}
	return res.Header, nil
}

// refused makes the error of an answer.
func refused(res *http.Response, body []byte) error {
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &said) != nil || said.Message == "" {
		said.Message = string(body[:min(len(body), far.MaxSays)])
	}
	return &refusedError{res.StatusCode, plain.Line(said.Message, far.MaxSays), retryAfter(res.Header.Get("Retry-After"), time.Now())}
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

// create asks once for a sandbox.
func (c *control) create(ctx context.Context, n *newSandbox) (made, error) {
	var m made
	_, err := c.ask(ctx, http.MethodPost, "/sandboxes", n, &m)
	if err == nil && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`).MatchString(m.ID) { // it is part of paths and of a host's name
		err = fmt.Errorf("E2B answers with a sandbox without a valid id: %q", plain.Line(m.ID, 100))
	}
	return m, err
}

// list lists the sandboxes with this value in their metadata.
func (c *control) list(ctx context.Context, key, value string) ([]made, error) {
	query := url.Values{"metadata": {url.QueryEscape(key) + "=" + url.QueryEscape(value)}, "limit": {"100"}}
	var all []made
	for {
		var page []made
		head, err := c.ask(ctx, http.MethodGet, "/v2/sandboxes?"+query.Encode(), nil, &page)
		if err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, m := range page {
			if m.Metadata[key] == value { // a server that knows no filter lists all
				all = append(all, m)
			}
		}
		next := head.Get("X-Next-Token")
		if next == "" || next == query.Get("nextToken") {
			return all, nil
		}
		query.Set("nextToken", next)
	}
}

// renew lets a sandbox live for this time from now.
func (c *control) renew(ctx context.Context, id string, lease time.Duration) error {
	_, err := c.ask(ctx, http.MethodPost, "/sandboxes/"+id+"/timeout", map[string]int64{"timeout": int64(lease.Seconds())}, nil)
	return err
}

// kill removes a sandbox, with several tries until the context ends, and reports
// whether it was there.
func (c *control) kill(ctx context.Context, id string) (there bool, err error) {
	wait := backoff{}
	for {
		_, err = c.ask(ctx, http.MethodDelete, "/sandboxes/"+url.PathEscape(id), nil, nil)
		if err == nil || isGone(err) {
			return err == nil, nil
		}
		var no *refusedError
		if errors.As(err, &no) && no.status < 500 && no.status != http.StatusTooManyRequests {
			return false, fmt.Errorf("remove the sandbox %s: %w", id, err)
		}
		if sleep(ctx, wait.next(err)) != nil {
			return false, fmt.Errorf("remove the sandbox %s: %w", id, errors.Join(context.Cause(ctx), err))
		}
	}
}

// there returns an error if a sandbox is not there, see isGone.
func (c *control) there(ctx context.Context, id string) error {
	_, err := c.ask(ctx, http.MethodGet, "/sandboxes/"+id, nil, nil)
	return err
}
