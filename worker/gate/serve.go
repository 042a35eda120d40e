package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/sandboxes"
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
	body, err := s.readBody(w, r)
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			refuse(w, d, Refusal{http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("The request body exceeds %d bytes.", large.Limit)})
		}
		return // or the client went away
	}
	req, err := decoder.Decode(r, body)
	if err != nil {
		s.cfg.Memory.recycle(body)
		refuse(w, d, Refusal{http.StatusBadRequest, "invalid_request_error", err.Error()})
		return
	}
	if req.Count != nil {
		s.cfg.Memory.recycle(body)
		write(w, http.StatusOK, req.Count(s.estimate(len(body))))
		return
	}
	req.Call.Dialect, req.Call.Tag = d.Name(), schema.TagAgent
	if s.cfg.Tag != nil {
		req.Call.Tag = s.cfg.Tag(r.Header, &req.Call)
	}
	retry := r.Header.Get("X-Stainless-Retry-Count")
	x, err := s.enter(r.Context(), body, retry != "" && retry != "0", req, &size)
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
	x.answer(w, r, d)
}

// answer writes the exchange to the client that is attached to it.
func (x *exchange) answer(w http.ResponseWriter, r *http.Request, d Dialect) {
	delivery, tracked := sandboxes.DeliveryFrom(r.Context())
	var once sync.Once
	end := func(delivered bool) {
		once.Do(func() {
			if delivered {
				x.commit()
			}
			x.detach(delivered)
		})
	}
	if tracked {
		delivery.OnSettled(end)
	}
	ok := x.write(w, r, d)
	if !ok || r.Context().Err() != nil {
		end(false)
	} else if !tracked {
		end(true)
	}
}

// write is false when the client went away before everything was written.
func (x *exchange) write(w http.ResponseWriter, r *http.Request, d Dialect) bool {
	a := &answering{x: x, w: w, d: d, rc: http.NewResponseController(w), meta: Meta{
		ID:    strings.ReplaceAll(x.call.Key, "/", "-"),
		Model: x.call.Model, Created: time.Now().Unix(),
	}}
	if x.call.Stream {
		a.stream = x.encoding.Stream(a.meta)
	}
	timer := time.NewTimer(x.s.cfg.Timing.Headers)
	defer timer.Stop()
	for {
		done, changed, err := a.step()
		if err != nil {
			return false
		}
		if done {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			if a.keepAlive() != nil {
				return false
			}
			timer.Reset(x.s.cfg.Timing.KeepAlive)
		case <-r.Context().Done():
			return false
		}
	}
}

// answering is the state of one response.
type answering struct {
	x      *exchange
	w      http.ResponseWriter
	rc     *http.ResponseController
	d      Dialect
	meta   Meta
	stream Stream // nil: the whole answer at once
	opened bool   // headers are sent
	sent   int    // deltas written
}

// step writes what is there and says when to look again.
func (a *answering) step() (done bool, changed <-chan struct{}, err error) {
	x := a.x
	x.mu.Lock()
	deltas := x.deltas[min(a.sent, len(x.deltas)):]
	finished, reply, failed := x.finished, &x.reply, x.err
	changed = x.changed
	if a.stream != nil && len(deltas) > 0 {
		x.released = true
	}
	x.mu.Unlock()
	if a.stream != nil {
		for _, d := range deltas {
			chunk, err := a.stream.Delta(d)
			if err != nil {
				return true, nil, a.fail(schema.Faultf("call", schema.CodeInvalid, schema.WhoTrainer, "%v", err))
			}
			if err := a.put(chunk); err != nil {
				return false, nil, err
			}
			a.sent++
		}
	}
	switch {
	case finished && failed != nil:
		return true, nil, a.fail(failed)
	case finished:
		return true, nil, a.final(reply)
	case len(deltas) > 0 && a.stream != nil:
		return false, changed, a.rc.Flush()
	default:
		return false, changed, nil
	}
}

func (a *answering) open() {
	if a.opened {
		return
	}
	a.opened = true
	h := a.w.Header()
	if a.stream != nil {
		h.Set("Content-Type", a.stream.ContentType())
		h.Set("Cache-Control", "no-cache")
	} else {
		h.Set("Content-Type", "application/json")
	}
	a.w.WriteHeader(http.StatusOK)
}

func (a *answering) put(b []byte) error {
	a.open()
	_, err := a.w.Write(b)
	return err
}

// keepAlive sends headers if need be, and a sign that the client counts.
func (a *answering) keepAlive() error {
	sign := []byte(" ")
	if a.stream != nil {
		sign = a.stream.KeepAlive()
	}
	if err := a.put(sign); err != nil {
		return err
	}
	return a.rc.Flush()
}

func (a *answering) final(reply *schema.Reply) error {
	var out []byte
	var err error
	if a.stream != nil {
		out, err = a.stream.Final(reply)
	} else {
		out, err = a.x.encoding.Encode(a.meta, reply)
	}
	if err != nil {
		return a.fail(schema.Faultf("call", schema.CodeInvalid, schema.WhoTrainer, "the trainer's message: %v", err))
	}
	return a.put(out)
}

// fail writes an error: with its status while that is still possible, in the
// body or the stream afterwards.
func (a *answering) fail(err error) error {
	f := refusalOf(err)
	if !a.opened {
		refuse(a.w, a.d, f)
		a.opened = true
		return nil
	}
	if a.stream != nil {
		return a.put(a.stream.Fail(f))
	}
	return a.put(a.d.Fail(f))
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

func (s *Session) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > BodyLimit {
		return nil, &http.MaxBytesError{Limit: BodyLimit}
	}
	in := http.MaxBytesReader(w, r.Body, BodyLimit)
	if r.ContentLength > 0 {
		body := s.cfg.Memory.body(int(r.ContentLength))
		_, err := io.ReadFull(in, body)
		return body, err
	}
	return io.ReadAll(in)
}

// enterDoor admits a request if the session is not overloaded: by requests, or
// by the bytes of those that are open or kept for a retry.
func (s *Session) enterDoor(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.reading + size
	for _, x := range s.alive {
		held += int64(len(x.body))
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
