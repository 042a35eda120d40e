package gate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/schema"
)

// serve handles one request for a model call.
func (s *Session) serve(w http.ResponseWriter, r *http.Request, d dialect.Dialect, reader *history.Reader) {
	if !s.admit(w, r, d) {
		return
	}
	size := r.ContentLength
	if size > history.BodyLimit {
		drain(w, r)
		s.refuseTurn(w, d, tooLarge())
		return
	}
	room := &room{s: s}
	if err := room.enter(max(size, 0) * 5 / 4); err != nil { // see history.Memory
		drain(w, r)
		s.refuseTurn(w, d, notTaken(err))
		return
	}
	defer room.leave()
	body, err := readBody(r, reader, room)
	if err != nil {
		drain(w, r)
		if f := notTaken(fmt.Errorf("read the body: %w", err)); f.Status == http.StatusBadRequest {
			refuse(w, d, f) // unread if the client went away
		} else {
			s.refuseTurn(w, d, f)
		}
		return
	}
	req, err := s.decode(r, reader, body, room)
	if err != nil {
		s.refuseTurn(w, d, notTaken(err))
		return
	}
	if req.Count != nil {
		write(w, http.StatusOK, req.Count(s.estimate(body.Len())))
		return
	}
	req.Call.Dialect, req.Call.Tag = d.Name(), schema.TagAgent
	if s.cfg.Tag != nil {
		req.Call.Tag = s.cfg.Tag(r.Header, &req.Call)
	}
	retry := r.Header.Get("X-Stainless-Retry-Count")
	x, begun, err := s.enter(r.Context(), origin{r.URL.Path, r.URL.RawQuery, body.Len(), req.Fingerprint}, retry != "" && retry != "0", req, room)
	if err != nil {
		var f *schema.Fault
		var wrong *schema.InvalidError
		switch {
		case errors.As(err, &wrong):
			s.refuseTurn(w, d, notTaken(err))
		case s.life.Err() != nil:
			refuse(w, d, dialect.Refusal{Status: http.StatusServiceUnavailable, Code: "ended", Message: "This session has ended."})
		case errors.As(err, &f):
			refuse(w, d, s.over(f))
		}
		return
	}
	x.answer(w, r, d, begun)
}

// refuseTurn refuses a request that did not become a call. It counts as one of the
// agent's own turns: the tag is that of a call.
func (s *Session) refuseTurn(w http.ResponseWriter, d dialect.Dialect, f dialect.Refusal) {
	s.turned(schema.Faultf("call", f.Code, schema.WhoAgent, "%s", f.Message))
	refuse(w, d, f)
}

// notTaken refuses a request that cannot become a call: with 429 if there is no memory
// for it now, 413 if there never is, and otherwise 400. The error may repeat a part of
// the request, so it is clipped.
func notTaken(err error) dialect.Refusal {
	var full *roomError
	var large *history.SizeError
	switch {
	case errors.As(err, &full):
		return dialect.Refusal{Status: http.StatusTooManyRequests, Code: "too_many_requests", Message: full.text}
	case errors.As(err, &large):
		return dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: large.Text}
	default:
		return dialect.Refusal{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: schema.Clip(err.Error(), maxRefusal)}
	}
}

// maxRefusal bounds the text of a refusal, in bytes.
const maxRefusal = 1000

// refusalOf returns the refusal of an error: with generic words, unless the
// trainer gave words for the agent.
func refusalOf(err error) dialect.Refusal {
	var f *schema.Fault
	if !errors.As(err, &f) {
		if errors.Is(err, errEnded) || errors.Is(err, context.Canceled) {
			return dialect.Refusal{Status: http.StatusServiceUnavailable, Code: "ended", Message: "This session has ended."}
		}
		return dialect.Refusal{Status: http.StatusInternalServerError, Code: "server_error", Message: "The model server failed."}
	}
	r := dialect.Refusal{Status: f.Status, Code: f.Code, Message: f.AgentMessage}
	if r.Status < 400 || r.Status > 599 {
		r.Status = http.StatusInternalServerError
	}
	if f.Code == schema.CodeContext { // agents look for the code, and compact
		r.Status, r.Message = http.StatusBadRequest, cmp.Or(r.Message, "The conversation exceeds the model's context window.")
		return r
	}
	if r.Message == "" {
		r.Code, r.Message = generic(r.Status)
	}
	return r
}

func generic(status int) (code, message string) {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error", "The request was refused."
	case http.StatusRequestEntityTooLarge:
		return "request_too_large", "The request is too large."
	case http.StatusConflict, http.StatusGone:
		return "conflict", "This call is over."
	case http.StatusTooManyRequests:
		return "rate_limit_exceeded", "Too many requests."
	default:
		return "server_error", "The model server failed."
	}
}

// decode decodes one body at a time, because decoding takes many times the
// memory of the call.
func (s *Session) decode(r *http.Request, reader *history.Reader, body history.Body, room *room) (history.Request, error) {
	s.decoding.Lock()
	defer s.decoding.Unlock()
	if err := room.resize(body.Cost()); err != nil {
		return history.Request{}, err
	}
	fresh := body.New()
	req, err := reader.Decode(r, body)
	if err == nil {
		err = room.resize(req.Weight(fresh))
	}
	return req, err
}

// drain reads the rest of a refused body, for a limited time: clients that send
// the whole body before they read would see a broken connection.
func drain(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainFor)) // some writers have no deadlines
	_, _ = io.CopyN(io.Discard, r.Body, 4*history.BodyLimit)                    // fails if the client went away
}

const drainFor = 10 * time.Second

func tooLarge() dialect.Refusal {
	return dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: fmt.Sprintf("The request body exceeds %d bytes.", history.BodyLimit)}
}

// readBody reads a body of known size, or a chunked one.
func readBody(r *http.Request, reader *history.Reader, room *room) (history.Body, error) {
	if r.ContentLength >= 0 {
		return reader.Read(r.Body, int(r.ContentLength))
	}
	whole := make([]byte, 0, 64<<10)
	for {
		if len(whole) == cap(whole) {
			if err := room.resize(3 * 2 * int64(cap(whole))); err != nil { // the old buffer, the new one, and the reader's copy
				return history.Body{}, err
			}
			whole = slices.Grow(whole, cap(whole))
		}
		n, err := r.Body.Read(whole[len(whole):cap(whole)])
		if whole = whole[:len(whole)+n]; len(whole) > history.BodyLimit {
			return history.Body{}, &history.SizeError{Text: tooLarge().Message}
		}
		if errors.Is(err, io.EOF) {
			return reader.Read(bytes.NewReader(whole), len(whole))
		}
		if err != nil {
			return history.Body{}, err
		}
	}
}
