package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Bounds of a WebSocket.
const (
	maxFrame    = 64 << 20 // bytes of a frame of the client
	handedOut   = 64       // calls that a client has at once, unless it asks for another number
	maxHanded   = 1024
	pingEvery   = 10 * time.Second
	pingWithin  = 20 * time.Second // until the pong
	attachLimit = 75 * time.Second // for a process that does not answer any more
)

// Types of the frames of GET /v1/calls.
const (
	frameCall     = "call"     // to the client: a model call
	frameAnswered = "answered" // to the client: the worker gets its answer
	frameOver     = "over"     // to the client: the call needs no answer
	frameError    = "error"    // to the client: its frame was not carried out
	frameDelta    = "delta"    // a piece of an answer
	frameAnswer   = "answer"   // a whole answer
	frameRefuse   = "refuse"   // a fault as the answer
	frameHold     = "hold"     // hand out no calls from now on
	frameResume   = "resume"   // end the hold
	frameAbort    = "abort"    // end the calls that the client has: their workers ask again
)

// frame is one message in either direction.
type frame struct {
	Type  string        `json:"type"`
	Key   string        `json:"key,omitempty"`
	Gen   string        `json:"gen,omitempty"`   // of call: name of the generation, as in result.committed
	Call  *schema.Call  `json:"call,omitempty"`  // of call: whole
	Delta *schema.Delta `json:"delta,omitempty"` // of delta
	Reply *schema.Reply `json:"reply,omitempty"` // of answer
	Fault *schema.Fault `json:"fault,omitempty"` // of refuse
	// Code, Field and Detail are of error, as in a problem.
	Code   string `json:"code,omitempty"`
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// callOptions is the query of GET /v1/calls.
type callOptions struct {
	shard    string
	parallel int
	takeOver bool
}

func callOptionsOf(q url.Values) (o callOptions, err error) {
	for name := range q {
		if !slices.Contains([]string{"shard", "parallel", "take_over"}, name) {
			return o, invalidField(name, q.Get(name), "there is no such parameter: want shard, parallel or take_over")
		}
	}
	o.shard = schema.DefaultShard
	if text := q.Get("shard"); text != "" {
		if err := schema.CheckToken("shard", text); err != nil {
			return o, err
		}
		o.shard = text
	}
	switch text := q.Get("take_over"); text {
	case "", "false":
	case "true":
		o.takeOver = true
	default:
		return o, invalidField("take_over", text, "want true or false")
	}
	o.parallel, err = numberOf(q, "parallel", handedOut, 1, maxHanded)
	return o, err
}

// calls hands the calls of a shard to a WebSocket, whose client answers them. The shard is
// free again when the WebSocket ends; the calls without an answer are then asked again.
func (s *Server) calls(w http.ResponseWriter, r *http.Request, t *tenant) error {
	o, err := callOptionsOf(r.URL.Query())
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return problemf(http.StatusUpgradeRequired, schema.CodeUnsupported, "want a WebSocket")
	}
	if _, err := t.dial(r.Context()); err != nil { // its error says more than that of a WebSocket
		return err
	}
	within, cancel := context.WithTimeout(r.Context(), attachLimit)
	defer cancel()
	tr, err := trainer.Dial(within, trainer.Config{URL: t.url, Creds: t.creds, Name: t.name, Shard: o.shard, TakeOver: o.takeOver, AnswerAll: true, Log: t.log})
	var used *trainer.InUseError
	if errors.As(err, &used) {
		return problemf(http.StatusConflict, codeConflict, "shard "+o.shard+" is in use by another process of this trainer: end it, or ask with take_over=true")
	}
	if err != nil {
		return err
	}
	defer tr.Close()
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil //nolint:nilerr // Accept has answered
	}
	defer conn.CloseNow() //nolint:errcheck // it may be closed
	conn.SetReadLimit(maxFrame)
	h := &hands{conn: conn, trainer: tr, log: t.log.With().Str("trainer", t.name).Logger(), room: make(chan struct{}, o.parallel), open: map[string]*trainer.Pending{}}
	h.run(r.Context())
	return nil
}

// hands are the calls that a client has.
type hands struct {
	conn    *websocket.Conn
	trainer *trainer.Trainer
	log     zerolog.Logger
	room    chan struct{} // has a value for each call that the client has

	mu   sync.Mutex
	open map[string]*trainer.Pending // by key
}

// run hands out calls and carries out the frames of the client until one of both fails, or
// the context ends.
func (h *hands) run(ctx context.Context) {
	all, alive := errgroup.WithContext(context.WithoutCancel(ctx)) // the end of its context cuts a WebSocket off
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(alive, func() { end(context.Cause(alive)) })()
	all.Go(func() error {
		err := h.give(ctx)
		_ = h.conn.Close(closing(err)) // the client may be gone
		return err
	})
	all.Go(func() error { return h.take(alive) })
	all.Go(func() error { return h.ping(alive) })
	_ = all.Wait() // the client has the reason
}

// closing returns the status with which a WebSocket ends after an error.
func closing(err error) (websocket.StatusCode, string) {
	var replaced *trainer.ReplacedError
	switch {
	case errors.As(err, &replaced):
		return websocket.StatusPolicyViolation, "another process of this trainer has taken the shard"
	case errors.Is(err, errEnding):
		return websocket.StatusGoingAway, errEnding.Error()
	default:
		return websocket.StatusInternalError, "the calls cannot be handed out any more"
	}
}

// ping ends the WebSocket of a client that does not answer any more.
func (h *hands) ping(ctx context.Context) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, pingWithin)
		err := h.conn.Ping(within)
		cancel()
		if err != nil {
			return err
		}
	}
}

func (h *hands) give(ctx context.Context) error {
	for {
		select {
		case h.room <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p, err := h.trainer.Next(ctx)
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.open[p.Call.Key] = p
		h.mu.Unlock()
		if err := h.send(ctx, &frame{Type: frameCall, Key: p.Call.Key, Gen: p.Call.Gen, Call: &p.Call.Call}); err != nil {
			return err
		}
		context.AfterFunc(p.Context(), func() { //nolint:contextcheck // the call has a context of its own
			<-h.room
			if h.remove(p) && ctx.Err() == nil {
				_ = h.send(ctx, &frame{Type: frameOver, Key: p.Call.Key}) // the reader notices a failure
			}
		})
	}
}

// remove removes a call that has ended. It reports whether the client still had it.
func (h *hands) remove(p *trainer.Pending) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[p.Call.Key] != p {
		return false
	}
	delete(h.open, p.Call.Key)
	return true
}

func (h *hands) find(key string) *trainer.Pending {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open[key]
}

func (h *hands) send(ctx context.Context, f *frame) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	return h.conn.Write(within, websocket.MessageText, data)
}

// take carries out the frames of the client.
func (h *hands) take(ctx context.Context) error {
	for {
		kind, data, err := h.conn.Read(ctx)
		if err != nil {
			return err
		}
		var f frame
		out := &frame{Type: frameError, Code: schema.CodeUnsupported, Detail: "want a text frame"}
		if kind == websocket.MessageText {
			if err = decode(data, &f); err == nil {
				out, err = h.carryOut(&f)
			}
			if err != nil {
				p, inside := problemOf(err)
				if inside {
					h.log.Warn().Err(err).Msg("a frame of a trainer was not carried out")
				}
				out = &frame{Type: frameError, Key: schema.Clip(f.Key, 80), Code: p.Code, Field: p.Field, Detail: p.Detail}
			}
		}
		if out == nil {
			continue
		}
		if err := h.send(ctx, out); err != nil {
			return err
		}
	}
}

// carryOut carries out a frame and returns the answer to it; nil: none.
func (h *hands) carryOut(f *frame) (*frame, error) {
	switch f.Type {
	case frameHold:
		h.trainer.Hold(trainer.Selection{})
		return nil, nil
	case frameResume:
		h.trainer.Resume()
		return nil, nil
	case frameAbort:
		h.trainer.Abort(trainer.Selection{})
		return nil, nil
	case frameDelta, frameAnswer, frameRefuse:
	default:
		return nil, invalidField("type", f.Type, fmt.Sprintf("want %s, %s, %s, %s, %s or %s", frameDelta, frameAnswer, frameRefuse, frameHold, frameResume, frameAbort))
	}
	p := h.find(f.Key)
	if p == nil {
		return &frame{Type: frameOver, Key: schema.Clip(f.Key, 80)}, nil
	}
	missing := func(field string) error { return invalidField(field, "none", "want it in a frame of type "+f.Type) }
	var err error
	switch {
	case f.Type == frameDelta && f.Delta == nil:
		err = missing("delta")
	case f.Type == frameAnswer && f.Reply == nil:
		err = missing("reply")
	case f.Type == frameRefuse && f.Fault == nil:
		err = missing("fault")
	case f.Type == frameDelta:
		err = p.Stream().Delta(f.Delta)
	default:
		return h.end(p, f)
	}
	if errors.Is(err, trainer.ErrOver) { // the client gets an over of its own
		err = nil
	}
	return nil, within("delta", err)
}

// end ends a call with the client's answer or fault.
func (h *hands) end(p *trainer.Pending, f *frame) (*frame, error) {
	if !h.remove(p) {
		return &frame{Type: frameOver, Key: f.Key}, nil
	}
	var err error
	if f.Type == frameAnswer {
		err = within("reply", p.Reply(f.Reply))
	} else {
		err = within("fault", p.Fault(f.Fault))
	}
	switch {
	case err == nil:
		return &frame{Type: frameAnswered, Key: f.Key}, nil
	case errors.Is(err, trainer.ErrOver):
		return &frame{Type: frameOver, Key: f.Key}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[p.Call.Key] == nil && p.Context().Err() == nil { // the client may send another answer
		h.open[p.Call.Key] = p
	}
	return nil, err
}
