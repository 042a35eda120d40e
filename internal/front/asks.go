package front

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Beginnings of the keys of frames about tool calls and verifications, since their own keys may
// equal keys of model calls.
const (
	toolKey   = "tool/"
	verifyKey = "verify/"
)

// operationMemory is the memory of an operation besides its data: the result, and its JSON.
const operationMemory = 24 << 20

// ask is a tool call or a verification that needs an answer of the client.
type ask struct {
	wanted context.Context // ends when it needs no answer any more
	frame  frame           // to the client
	handle *trainer.Handle // of a verification; nil: a tool call
	answer chan *frame     // of capacity 1: the client's

	// The lock of hands protects these.
	given     bool // the client has answered
	operating bool // an operation of the client runs
}

// tool runs a tool call with the client.
func (h *hands) tool(ctx context.Context, c *trainer.ToolCall) (string, error) {
	got, err := h.ask(h.tools, &ask{wanted: ctx, frame: frame{Type: frameTool, Key: toolKey + c.Key, Tool: &schema.ToolCall{V: schema.Version, Key: c.Key, Name: c.Name, Arguments: c.Arguments}}})
	if err != nil {
		return "", err
	}
	if got.ToolResult.IsError {
		return "", errors.New(got.ToolResult.Text)
	}
	return got.ToolResult.Text, nil
}

// verify verifies with the client.
func (h *hands) verify(ctx context.Context, handle *trainer.Handle) (*schema.Verdict, error) {
	got, err := h.ask(h.verifications, &ask{wanted: ctx, handle: handle, frame: frame{Type: frameVerify, Key: verifyKey + handle.Key, Verification: &handle.Verification}})
	if err != nil {
		return nil, err
	}
	if got.Fault != nil {
		return nil, got.Fault
	}
	return got.Verdict, nil
}

// ask waits for the client's answer.
func (h *hands) ask(by chan<- *ask, a *ask) (*frame, error) {
	a.answer = make(chan *frame, 1)
	select {
	case by <- a:
	case <-a.wanted.Done():
		return nil, context.Cause(a.wanted)
	}
	select {
	case got := <-a.answer:
		return got, nil
	case <-a.wanted.Done():
		return nil, context.Cause(a.wanted)
	}
}

// relay gives the client tool calls, or verifications, as many at once as model calls.
func (h *hands) relay(ctx context.Context, from <-chan *ask) error {
	room := make(chan struct{}, cap(h.room))
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil // give ends the WebSocket
		}
		var a *ask
		select {
		case a = <-from:
		case <-ctx.Done():
			return nil
		}
		told, err := h.turn(ctx, a.frame.Key)
		if err != nil {
			return nil //nolint:nilerr // give ends the WebSocket
		}
		h.mu.Lock()
		h.asked[a.frame.Key] = a
		h.mu.Unlock()
		if err := h.send(ctx, a.frame.traced(a.wanted)); err != nil { //nolint:contextcheck // it has a context of its own
			return err
		}
		context.AfterFunc(a.wanted, func() { //nolint:contextcheck // it has a context of its own
			if out := h.leave(a); ctx.Err() == nil {
				_ = h.send(ctx, out) // the reader notices a failure
			}
			told()
			<-room
		})
	}
}

// leave removes one that has ended, and returns the frame about it.
func (h *hands) leave(a *ask) *frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.asked, a.frame.Key)
	if a.given {
		return &frame{Type: frameAnswered, Key: a.frame.Key}
	}
	return &frame{Type: frameOver, Key: a.frame.Key}
}

// carryOutAsk carries out a frame about a tool call or a verification.
func (h *hands) carryOutAsk(ctx context.Context, f *frame) (*frame, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.asked[f.Key]
	if a == nil || a.given {
		return overFrame(f), nil
	}
	var err error
	switch {
	case a.handle == nil && f.Type != frameToolResult:
		return nil, invalidField("type", f.Type, "want "+frameToolResult+" for a tool call")
	case a.handle != nil && f.Type == frameToolResult:
		return nil, invalidField("type", f.Type, fmt.Sprintf("want %s, %s or %s for a verification", frameOperate, frameVerdict, frameRefuse))
	case f.Type == frameOperate && f.Operation == nil:
		err = missing(f, "operation")
	case f.Type == frameOperate:
		return nil, h.operate(ctx, a, f)
	case f.Type == frameToolResult && f.ToolResult == nil:
		err = missing(f, "tool_result")
	case f.Type == frameToolResult:
		err = within("tool_result", schema.Validate(f.ToolResult))
	case f.Type == frameVerdict && f.Verdict == nil:
		err = missing(f, "verdict")
	case f.Type == frameVerdict:
		err = within("verdict", schema.Validate(f.Verdict))
	case f.Fault == nil:
		err = missing(f, "fault")
	default:
		err = schema.Validate(f.Fault)
	}
	if err != nil {
		return nil, err // the client may send another answer
	}
	a.given = true
	a.answer <- f
	return nil, nil // the client is told when the answer was sent
}

// operate begins an operation in the sandbox of a verification. The caller holds the lock.
func (h *hands) operate(ctx context.Context, a *ask, f *frame) error {
	if err := schema.Validate(f.Operation); err != nil {
		return within("operation", err)
	}
	if a.operating {
		return busy("an operation of this verification runs: send the next one after its result")
	}
	size := int64(len(f.Operation.Data)) + operationMemory
	if !h.memory.TryAcquire(size) {
		return busy("the operations of this trainer take too much memory at this moment")
	}
	a.operating = true
	h.operations.Go(func() {
		defer h.memory.Release(size)
		result, err := a.handle.Operate(ctx, f.Operation)
		h.mu.Lock()
		a.operating = false
		h.mu.Unlock()
		if ctx.Err() != nil || errors.Is(err, trainer.ErrOver) || errors.Is(err, trainer.ErrClosed) { // the client gets an over, or nothing any more
			return
		}
		out := &frame{Type: frameOperated, Key: f.Key, Number: f.Number}
		switch {
		case err == nil:
			out.Result = &result
		case errors.As(err, &out.Fault):
		default:
			out = h.failed(f, err)
		}
		_ = h.send(ctx, out) // the reader notices a failure
	})
	return nil
}

// aboutAsk reports whether a frame is about a tool call or a verification.
func (f *frame) aboutAsk() bool {
	return f.Type == frameToolResult || f.Type == frameVerdict || f.Type == frameOperate || f.Type == frameRefuse && strings.HasPrefix(f.Key, verifyKey)
}
