package gate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/turngate/turngate/schema"
)

// serve handles one request for a model call.
func (s *Session) serve(w http.ResponseWriter, r *http.Request, d Dialect, decoder Decoder) {
	if !s.admit(w, r, d) {
		return
	}
	size := r.ContentLength
	if size < 0 || size > BodyLimit {
		size = BodyLimit
	}
	if !s.enterDoor(size) {
		refuse(w, d, Refusal{http.StatusTooManyRequests, "too_many_requests", fmt.Sprintf("More than %d requests, or %d bytes, are open.", maxOpen, s.cfg.MaxHeld)})
		return
	}
	defer func() { s.leaveDoor(size) }()
	body, err := readBody(w, r, decoder)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			refuse(w, d, Refusal{http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("The request body exceeds %d bytes.", large.Limit)})
		}
		return // or the client went away
	}
	req, err := decoder.Decode(r, body)
	if err != nil {
		refuse(w, d, Refusal{http.StatusBadRequest, "invalid_request_error", err.Error()})
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
	x, fresh, err := s.enter(r.Context(), origin{r.URL.Path, r.URL.RawQuery, body.Len(), req.print}, retry != "" && retry != "0", req, &size)
	if err != nil {
		var f *schema.Fault
		switch {
		case errors.As(err, &f) && (f.Code == schema.CodeCallCap || f.Code == schema.CodeTokenCap):
			refuse(w, d, s.over(f))
		case s.life.Err() != nil:
			refuse(w, d, Refusal{http.StatusServiceUnavailable, "ended", "This session has ended."})
		}
		return
	}
	x.answer(w, r, d, fresh)
}

// refusalOf is what an agent reads of an error: generic words, unless the
// trainer wrote some for it.
func refusalOf(err error) Refusal {
	var f *schema.Fault
	if !errors.As(err, &f) {
		if errors.Is(err, ErrEnded) || errors.Is(err, context.Canceled) {
			return Refusal{http.StatusServiceUnavailable, "ended", "This session has ended."}
		}
		return Refusal{http.StatusInternalServerError, "server_error", "The model server failed."}
	}
	r := Refusal{Status: f.Status, Code: f.Code, Message: f.AgentMessage}
	if r.Status < 400 || r.Status > 599 {
		r.Status = http.StatusInternalServerError
	}
	if f.Code == schema.CodeContext { // agents know it by its code, and compact
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

func readBody(w http.ResponseWriter, r *http.Request, d Decoder) (Body, error) {
	if r.ContentLength > BodyLimit {
		return Body{}, &http.MaxBytesError{Limit: BodyLimit}
	}
	if r.ContentLength >= 0 {
		return d.Read(r.Body, int(r.ContentLength))
	}
	whole, err := io.ReadAll(http.MaxBytesReader(w, r.Body, BodyLimit))
	if err != nil {
		return Body{}, err
	}
	return d.Read(bytes.NewReader(whole), len(whole))
}

// enterDoor admits a request if the session is not overloaded: by requests, or
// by the bytes of those that are open or kept for a retry.
func (s *Session) enterDoor(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.reading + size
	for _, x := range s.alive {
		held += int64(x.of.size)
	}
	if s.open >= maxOpen || held > s.cfg.MaxHeld {
		return false
	}
	s.open++
	s.reading += size
	return true
}

func (s *Session) leaveDoor(size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.reading -= size
}
