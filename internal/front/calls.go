package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Bounds of a WebSocket.
const (
	maxFrame    = 64 << 20 // bytes of a frame of the client
	smallFrame  = 1 << 20  // bytes of which any number may be read at once
	handedOut   = 64       // calls that a client has at once, unless it asks for another number
	maxHanded   = 1024
	maxTools    = 256
	maxSelected = 10_000 // rollouts of a hold or an abort, which a hold keeps
	pingEvery   = 10 * time.Second
	pingWithin  = 20 * time.Second // until the pong
	attachLimit = 75 * time.Second // for a process that does not answer any more
)

// Types of the frames of GET /v1/calls.
const (
	frameCall       = "call"        // to the client: a model call
	frameTool       = "tool"        // to the client: a tool call
	frameVerify     = "verify"      // to the client: a verification
	frameOperated   = "operated"    // to the client: the result or fault of an operation
	frameAnswered   = "answered"    // to the client: the worker gets its answer
	frameOver       = "over"        // to the client: the call needs no answer
	frameError      = "error"       // to the client: its frame was not carried out
	frameDelta      = "delta"       // a piece of an answer
	frameAnswer     = "answer"      // a whole answer
	frameToolResult = "tool_result" // the answer to a tool call
	frameOperate    = "operate"     // run an operation in the sandbox of a verification
	frameVerdict    = "verdict"     // the answer to a verification
	frameRefuse     = "refuse"      // a fault as the answer
	frameHold       = "hold"        // hand out no model calls from now on, for all or some rollouts
	frameResume     = "resume"      // end the hold
	frameAbort      = "abort"       // end the model calls that the client has: their workers ask again
)

// frame is one message in either direction.
type frame struct {
	Type  string        `json:"type"`
	Key   string        `json:"key,omitempty"`
	Gen   string        `json:"gen,omitempty"`   // of each frame about a model call: name of the generation, as in result.committed
	Call  *schema.Call  `json:"call,omitempty"`  // of call: whole
	Delta *schema.Delta `json:"delta,omitempty"` // of delta
	Reply *schema.Reply `json:"reply,omitempty"` // of answer
	Fault *schema.Fault `json:"fault,omitempty"` // of refuse, and of an operated that failed

	Tool         *schema.ToolCall        `json:"tool,omitempty"`         // of tool
	ToolResult   *schema.ToolResult      `json:"tool_result,omitempty"`  // of tool_result
	Verification *schema.Verification    `json:"verification,omitempty"` // of verify
	Verdict      *schema.Verdict         `json:"verdict,omitempty"`      // of verdict
	Operation    *schema.Operation       `json:"operation,omitempty"`    // of operate
	Result       *schema.OperationResult `json:"result,omitempty"`       // of operated
	// Number is of operate: any number of the client's, which operated, or an error about
	// it, has again.
	Number   int         `json:"number,omitempty"`
	Rollouts []schema.ID `json:"rollouts,omitempty"` // of hold and abort: the rollouts of the calls; nil: all
	// Traceparent and Tracestate are of call, tool and verify: the trace in the worker, as W3C
	// Trace Context writes it.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	// Code, Field and Detail are of error, as in a problem.
	Code   string `json:"code,omitempty"`
	Field  string `json:"field,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// traced adds the trace of a call to the frame with it.
func (f *frame) traced(call context.Context) *frame {
	h := map[string][]string{}
	traces.Put(h, traces.SpanContext(call))
	f.Traceparent, f.Tracestate = strings.Join(h["traceparent"], ""), strings.Join(h["tracestate"], "")
	return f
}

// callOptions is the query of GET /v1/calls.
type callOptions struct {
	shard    string
	parallel int
	takeOver bool
	tools    []string // names of the tools that the client runs
	verify   bool     // the client verifies
}

func callOptionsOf(q url.Values) (o callOptions, err error) {
	for name := range q {
		if !slices.Contains([]string{"shard", "parallel", "take_over", "tools", "verify"}, name) {
			return o, invalidField(name, q.Get(name), "there is no such parameter: want shard, parallel, take_over, tools or verify")
		}
	}
	o.shard = schema.DefaultShard
	if text := q.Get("shard"); text != "" {
		if err := schema.CheckToken("shard", text); err != nil {
			return o, err
		}
		o.shard = text
	}
	for name, to := range map[string]*bool{"take_over": &o.takeOver, "verify": &o.verify} {
		switch text := q.Get(name); text {
		case "", "false":
		case "true":
			*to = true
		default:
			return o, invalidField(name, text, "want true or false")
		}
	}
	if text := q.Get("tools"); text != "" {
		o.tools = strings.Split(text, ",")
		if len(o.tools) > maxTools {
			return o, invalidField("tools", strconv.Itoa(len(o.tools))+" names", fmt.Sprintf("want at most %d", maxTools))
		}
		for _, name := range o.tools {
			if err := schema.CheckToken("tools", name); err != nil {
				return o, err
			}
		}
	}
	o.parallel, err = numberOf(q, "parallel", handedOut, 1, maxHanded)
	return o, err
}

// calls hands the calls of a shard to the client of a WebSocket for answers, and also tool
// calls and verifications if the client asks for them. The shard is free again when the
// WebSocket ends; the calls without an answer are then asked again.
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
	h := newHands(t, &o)
	c := trainer.Config{URL: t.url, Creds: t.creds, Name: t.name, Shard: o.shard, TakeOver: o.takeOver, AnswerAll: true, NoBaseIDs: true, Log: t.log, Tools: map[string]trainer.Tool{}}
	for _, name := range o.tools {
		c.Tools[name] = h.tool
	}
	if o.verify {
		c.Verify = h.verify
	}
	tr, err := trainer.Dial(within, c)
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
	h.conn, h.trainer = conn, tr
	h.run(r.Context())
	return nil
}

// hands are the calls that a client has.
type hands struct {
	conn    *websocket.Conn
	trainer *trainer.Trainer
	log     zerolog.Logger
	room    chan struct{} // has a value for each model call that the client has
	// large has a value for each large frame that is read or carried out, of all WebSockets of
	// the trainer, which share memory, too.
	large  chan struct{}
	larges atomic.Int64 // beginnings and ends of large frames of this WebSocket
	memory *semaphore.Weighted

	tools, verifications chan *ask      // that are to be given to the client
	operations           sync.WaitGroup // that run

	mu     sync.Mutex
	open   map[string]*given          // by key
	pieces map[*trainer.Pending]int64 // memory of the pieces of its answer
	asked  map[string]*ask            // by key
	turns  map[string]chan struct{}   // by key: closed when the client was told of the end
}

// given is a model call that the client has.
type given struct {
	*trainer.Pending
	told func() // for the one that has told the client of its end
}

func newHands(t *tenant, o *callOptions) *hands {
	return &hands{
		log: t.log.With().Str("trainer", t.name).Logger(), room: make(chan struct{}, o.parallel), large: t.large, memory: t.memory,
		tools: make(chan *ask), verifications: make(chan *ask),
		open: map[string]*given{}, pieces: map[*trainer.Pending]int64{}, asked: map[string]*ask{}, turns: map[string]chan struct{}{},
	}
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
	all.Go(func() error { return h.relay(ctx, h.tools) })
	all.Go(func() error { return h.relay(ctx, h.verifications) })
	all.Go(func() error { return h.take(ctx, alive) })
	all.Go(func() error { return h.ping(alive) })
	_ = all.Wait() // the client has the reason
	end(nil)
	h.operations.Wait()
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
		n := h.larges.Load()
		within, cancel := context.WithTimeout(ctx, pingWithin)
		err := h.conn.Ping(within)
		cancel()
		if err != nil && n%2 == 0 && h.larges.Load() == n { // else the pong comes behind the large frame
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
		g := &given{Pending: p}
		if g.told, err = h.turn(ctx, p.Call.Key); err != nil {
			return err
		}
		h.mu.Lock()
		h.open[p.Call.Key] = g
		h.mu.Unlock()
		context.AfterFunc(p.Context(), func() { h.freePieces(p) }) //nolint:contextcheck // the call has a context of its own
		if err := h.send(ctx, (&frame{Type: frameCall, Key: p.Call.Key, Gen: p.Call.Gen, Call: &p.Call.Call}).traced(p.Context())); err != nil {
			return err
		}
		context.AfterFunc(p.Context(), func() { //nolint:contextcheck // the call has a context of its own
			<-h.room
			if h.remove(g) {
				h.tell(ctx, g, frameOver)
			}
		})
	}
}

// turn waits until the client was told of the end of an earlier call with a key, so that the
// frames about a key come in the order of its calls. The caller calls told after the frame
// about the end of its own call.
func (h *hands) turn(ctx context.Context, key string) (told func(), err error) {
	mine := make(chan struct{})
	for {
		h.mu.Lock()
		before := h.turns[key]
		if before == nil {
			h.turns[key] = mine
		}
		h.mu.Unlock()
		if before == nil {
			break
		}
		select {
		case <-before:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.turns, key)
		close(mine)
	}, nil
}

// tell tells the client of the end of a call, which was removed.
func (h *hands) tell(ctx context.Context, g *given, kind string) {
	defer g.told()
	if ctx.Err() == nil {
		_ = h.send(ctx, &frame{Type: kind, Key: g.Call.Key, Gen: g.Call.Gen}) // the reader notices a failure
	}
}

// remove removes a call that has ended. It reports whether the client still had it.
func (h *hands) remove(g *given) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open[g.Call.Key] != g {
		return false
	}
	delete(h.open, g.Call.Key)
	return true
}

// find returns the call of which a frame is; nil: the client has no such call any more.
func (h *hands) find(f *frame) *given {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g := h.open[f.Key]; g != nil && g.Call.Gen == f.Gen {
		return g
	}
	return nil
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

// take carries out the frames of the client while the WebSocket is alive.
func (h *hands) take(ctx, alive context.Context) error {
	for {
		kind, data, done, err := h.read(alive)
		if err != nil {
			return err
		}
		var f frame
		out := &frame{Type: frameError, Code: schema.CodeUnsupported, Detail: "want a text frame"}
		if kind == websocket.MessageText {
			if err = decode(data, &f); err == nil {
				out, err = h.carryOut(ctx, &f, int64(len(data)))
			}
			if err != nil {
				out = h.failed(&f, err)
			}
		}
		done()
		if out == nil {
			continue
		}
		if err := h.send(alive, out); err != nil {
			return err
		}
	}
}

// read reads a frame. The caller calls done when it needs it no more.
func (h *hands) read(ctx context.Context) (kind websocket.MessageType, data []byte, done func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kind, from, err := h.conn.Reader(ctx)
	if err != nil {
		return kind, nil, nil, err
	}
	data, err = io.ReadAll(io.LimitReader(from, smallFrame))
	if err != nil || len(data) < smallFrame {
		return kind, data, func() {}, err
	}
	h.larges.Add(1)
	select {
	case h.large <- struct{}{}:
	case <-ctx.Done():
		return kind, nil, nil, context.Cause(ctx)
	}
	late := time.AfterFunc(readWithin, cancel)
	defer late.Stop()
	rest, err := io.ReadAll(from)
	if err != nil {
		<-h.large
		return kind, nil, nil, err
	}
	return kind, append(data, rest...), func() {
		h.larges.Add(1)
		<-h.large
	}, nil
}

// failed returns the frame about one that was not carried out.
func (h *hands) failed(f *frame, err error) *frame {
	p, inside := problemOf(err)
	if inside {
		h.log.Warn().Err(err).Msg("a frame of a trainer was not carried out")
	}
	return &frame{Type: frameError, Key: schema.Clip(f.Key, 100), Gen: schema.Clip(f.Gen, 100), Number: f.Number, Code: p.Code, Field: p.Field, Detail: p.Detail}
}

func overFrame(f *frame) *frame {
	return &frame{Type: frameOver, Key: schema.Clip(f.Key, 100), Gen: schema.Clip(f.Gen, 100)}
}

func missing(f *frame, field string) error {
	return invalidField(field, "none", "want it in a frame of type "+f.Type)
}

// carryOut carries out a frame of so many bytes and returns the answer to it; nil: none.
func (h *hands) carryOut(ctx context.Context, f *frame, size int64) (*frame, error) {
	if f.aboutAsk() {
		return h.carryOutAsk(ctx, f)
	}
	switch f.Type {
	case frameHold:
		of, err := f.selection()
		if err == nil {
			h.trainer.Hold(of)
		}
		return nil, err
	case frameResume:
		h.trainer.Resume()
		return nil, nil
	case frameAbort:
		of, err := f.selection()
		if err == nil {
			h.trainer.Abort(of)
		}
		return nil, err
	case frameDelta, frameAnswer, frameRefuse:
	default:
		return nil, invalidField("type", f.Type, "want "+strings.Join([]string{frameDelta, frameAnswer, frameToolResult, frameOperate, frameVerdict, frameRefuse, frameHold, frameResume, frameAbort}, ", "))
	}
	if f.Gen == "" {
		return nil, missing(f, "gen")
	}
	g := h.find(f)
	if g == nil {
		return overFrame(f), nil
	}
	var err error
	switch {
	case f.Type == frameDelta && f.Delta == nil:
		err = missing(f, "delta")
	case f.Type == frameAnswer && f.Reply == nil:
		err = missing(f, "reply")
	case f.Type == frameRefuse && f.Fault == nil:
		err = missing(f, "fault")
	case f.Type == frameDelta:
		if err := h.keepPiece(g.Pending, size); err != nil {
			return nil, err
		}
		err = g.Stream().Delta(f.Delta)
	default:
		return nil, h.end(ctx, g, f)
	}
	if errors.Is(err, trainer.ErrOver) { // the client gets an over of its own
		err = nil
	}
	return nil, within("delta", err)
}

// selection returns the rollouts of a hold or an abort.
func (f *frame) selection() (trainer.Selection, error) {
	if f.Rollouts == nil {
		return trainer.Selection{}, nil
	}
	if len(f.Rollouts) > maxSelected {
		return trainer.Selection{}, invalidField("rollouts", strconv.Itoa(len(f.Rollouts))+" ids", fmt.Sprintf("want at most %d", maxSelected))
	}
	only := make(map[schema.ID]bool, len(f.Rollouts))
	for i, id := range f.Rollouts {
		if _, err := schema.ParseID(string(id)); err != nil {
			return trainer.Selection{}, invalidField(fmt.Sprintf("rollouts[%d]", i), string(id), "want the id of a rollout")
		}
		only[id] = true
	}
	return trainer.Selection{Only: func(id schema.ID) bool { return only[id] }}, nil
}

// end ends a call with the client's answer or fault.
func (h *hands) end(ctx context.Context, g *given, f *frame) error {
	if !h.remove(g) {
		return nil // the client gets an over of its own
	}
	var err error
	if f.Type == frameAnswer {
		err = within("reply", g.Reply(f.Reply))
	} else {
		err = g.Fault(f.Fault)
	}
	switch {
	case err == nil:
		h.tell(ctx, g, frameAnswered)
		return nil
	case !errors.Is(err, trainer.ErrOver) && h.restore(g): // the client may send another answer
		return err
	}
	h.tell(ctx, g, frameOver)
	return nil
}

// restore gives a call back to the client, unless it has ended.
func (h *hands) restore(g *given) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if g.Context().Err() != nil {
		return false
	}
	h.open[g.Call.Key] = g
	return true
}

// keepPiece counts the memory of a piece of an answer, which is kept until the call has ended:
// its worker may ask for it again.
func (h *hands) keepPiece(p *trainer.Pending, size int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.Context().Err() != nil {
		return nil // it is not kept
	}
	if !h.memory.TryAcquire(size) {
		return busy("the pieces of this trainer's answers take too much memory at this moment")
	}
	h.pieces[p] += size
	return nil
}

func (h *hands) freePieces(p *trainer.Pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory.Release(h.pieces[p])
	delete(h.pieces, p)
}
