package gatetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// abandon sends a request and hangs up while it waits.
func (h *Harness) abandon(body string) {
	h.T.Helper()
	ctx, cancel := context.WithCancel(h.T.Context())
	before := h.Model.Calls.Load()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		res, err := h.Post(ctx, body)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	harness.Eventually(h.T, "the call", timeLimit, func() bool { return h.Model.Calls.Load() > before })
	closed := h.closed.Load()
	cancel()
	<-gone
	harness.Eventually(h.T, "the hang-up", timeLimit, func() bool { return h.closed.Load() > closed })
}

func orphan(t *testing.T, f Fixture) {
	for _, stream := range []bool{false, true} {
		release := make(chan struct{})
		h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
		h.abandon(f.Body("hi", stream))
		close(release)
		status, body := h.Ask(f.Body("hi", stream), "X-Stainless-Retry-Count: 1")
		if text, _ := f.Read(t, body, stream); status != 200 || text != "ok" {
			t.Errorf("stream %v: %d %q", stream, status, text)
		}
		if n := h.Model.Calls.Load(); n != 1 {
			t.Errorf("stream %v: %d generations, want 1", stream, n)
		}
		// After delivery the same request is a new call.
		if status, _ := h.Ask(f.Body("hi", stream)); status != 200 || h.Model.Calls.Load() != 2 {
			t.Errorf("stream %v: %d, %d generations, want 2", stream, status, h.Model.Calls.Load())
		}
	}
}

func equalCalls(t *testing.T, f Fixture) {
	release := make(chan struct{})
	h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if status, _ := h.Ask(f.Body("hi", false)); status != 200 {
				t.Errorf("status %d", status)
			}
		})
	}
	harness.Eventually(t, "two calls", timeLimit, func() bool { return h.Model.Calls.Load() == 2 })
	close(release)
	wg.Wait()
}

func retryWaits(t *testing.T, f Fixture) {
	release := make(chan struct{})
	h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		if res, err := h.Post(ctx, f.Body("hi", false)); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	harness.Eventually(t, "the call", timeLimit, func() bool { return h.Model.Calls.Load() == 1 })
	second := make(chan int, 1)
	go func() {
		status, _ := h.Ask(f.Body("hi", false), "X-Stainless-Retry-Count: 1")
		second <- status
	}()
	// A retry waits longer than an equal request without the header.
	select {
	case status := <-second:
		t.Fatalf("the retry was answered with %d while the first request was open", status)
	case <-time.After(3 * Timing().Equal):
	}
	closed := h.closed.Load()
	cancel()
	<-first
	harness.Eventually(t, "the hang-up", timeLimit, func() bool { return h.closed.Load() > closed })
	close(release)
	if status := <-second; status != 200 || h.Model.Calls.Load() != 1 {
		t.Fatalf("status %d after %d generations", status, h.Model.Calls.Load())
	}
}

func orphanEnds(t *testing.T, f Fixture) {
	release := make(chan struct{})
	defer close(release)
	h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
	h.abandon(f.Body("hi", false))
	harness.Eventually(t, "the cancel", timeLimit, func() bool { return h.Model.Cancelled.Load() == 1 })
}

func closeCancels(t *testing.T, f Fixture) {
	release := make(chan struct{})
	defer close(release)
	h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
	done := make(chan int, 1)
	go func() {
		status, _ := h.Ask(f.Body("hi", false))
		done <- status
	}()
	harness.Eventually(t, "the call", timeLimit, func() bool { return h.Model.Calls.Load() == 1 })
	h.Session.Close()
	if h.Model.Cancelled.Load() != 1 {
		t.Error("the call was not given up when Close returned")
	}
	if status := <-done; status != 503 {
		t.Errorf("the agent got %d", status)
	}
}

func piece(gen, text string) schema.Frame {
	content, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return schema.Frame{Kind: schema.FrameDelta, Gen: gen, Delta: &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":` + string(content) + `}`), CompletionIDs: schema.PackTokenIDs([]int32{434343})}}
}

func pass(t *testing.T, f Fixture) {
	next := make(chan struct{})
	h := New(t, f, &Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		for _, text := range []string{"one ", "two"} {
			if err := frames(piece("g1", text)); err != nil {
				return schema.Reply{}, err
			}
			<-next
		}
		r := Text("one two")
		r.CompletionIDs, r.Logprobs = schema.PackTokenIDs([]int32{434343, 434343}), nil
		return r, nil
	}}, schema.GateOptions{Stream: schema.StreamPass})
	res, err := h.Post(t.Context(), f.Body("hi", true))
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(res.Body)
	var seen []byte
	for _, want := range []string{"one ", "two"} { // each arrives before the next is made
		for !bytes.Contains(seen, []byte(want)) {
			b, err := r.ReadByte()
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, b)
		}
		next <- struct{}{}
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	body := append(seen, rest...)
	if text, _ := f.Read(t, body, true); text != "one two" || bytes.Contains(body, []byte("434343")) {
		t.Errorf("got %q in %s", text, body)
	}
}

func passBroken(t *testing.T, f Fixture) {
	var calls atomic.Int32
	h := New(t, f, &Model{Answer: func(ctx context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		if calls.Add(1) > 1 {
			return Text("again"), nil
		}
		if err := frames(piece("g1", "begun")); err != nil {
			return schema.Reply{}, err
		}
		<-ctx.Done()
		return schema.Reply{}, context.Cause(ctx)
	}}, schema.GateOptions{Stream: schema.StreamPass})
	ctx, cancel := context.WithCancel(t.Context())
	res, err := h.Post(ctx, f.Body("hi", true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	res.Body.Close()
	harness.Eventually(t, "the cancel", timeLimit, func() bool { return h.Model.Cancelled.Load() == 1 })
	_, body := h.Ask(f.Body("hi", true), "X-Stainless-Retry-Count: 1")
	if text, _ := f.Read(t, body, true); text != "again" || calls.Load() != 2 {
		t.Errorf("got %q after %d calls", text, calls.Load())
	}
	if _, committed := h.Session.Stats(); len(committed) != 1 || committed[0].Call != 2 {
		t.Errorf("committed %+v: only the second generation reached the agent", committed)
	}
}

func passRegenerated(t *testing.T, f Fixture) {
	released := make(chan struct{})
	result := make(chan error, 1)
	h := New(t, f, &Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		if err := frames(piece("g1", "one ")); err != nil {
			return schema.Reply{}, err
		}
		<-released
		err := frames(piece("g2", "other")) // the trainer died and began again
		result <- err
		return schema.Reply{}, err
	}}, schema.GateOptions{Stream: schema.StreamPass})
	res, err := h.Post(t.Context(), f.Body("hi", true))
	if err != nil {
		t.Fatal(err)
	}
	var seen []byte
	buf := make([]byte, 1)
	for !bytes.Contains(seen, []byte("one ")) {
		if _, err := res.Body.Read(buf); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, buf[0])
	}
	close(released)
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if err := <-result; err == nil {
		t.Error("a second generation was taken after the first was begun")
	}
	if bytes.Contains(rest, []byte("other")) || !bytes.Contains(rest, []byte("error")) {
		t.Errorf("the rest of the stream is %s", rest)
	}
}

func noTrainer(t *testing.T, f Fixture) {
	h := New(t, f, &Model{Answer: refuseWith(&schema.Fault{Code: schema.CodeNoTrainer, Message: "nobody", Status: 503})}, schema.GateOptions{})
	if status, _ := h.Ask(f.Body("hi", false)); status != 503 {
		t.Errorf("status %d", status)
	}
	<-h.Session.Done()
	if fault := h.Session.Fault(); fault == nil || fault.Code != schema.CodeNoTrainer {
		t.Errorf("fault %+v", fault)
	}
}

func clock(t *testing.T, f Fixture) {
	steps := make(chan schema.Frame)
	heard := make(chan struct{})
	h := New(t, f, &Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		for s := range steps {
			if err := frames(s); err != nil {
				return schema.Reply{}, err
			}
			heard <- struct{}{}
		}
		return Text("ok"), nil
	}}, schema.GateOptions{})
	var wg sync.WaitGroup
	wg.Go(func() { h.Ask(f.Body("hi", false)) })
	send := func(s schema.Frame) {
		steps <- s
		<-heard
	}
	stands := func() bool {
		a := h.Session.Paused()
		time.Sleep(5 * time.Millisecond) // the test needs time to pass
		return h.Session.Paused() > a
	}
	for _, step := range []struct {
		frame  schema.Frame
		stands bool
	}{
		{schema.Frame{Kind: schema.FrameAccept, Gen: "g1"}, false},
		{schema.Frame{Kind: schema.FrameAbsent}, true},
		{schema.Frame{Kind: schema.FrameBeat, Gen: "g1"}, false},
		{schema.Frame{Kind: schema.FrameBeat, Gen: "g1", Held: true}, true},
		{schema.Frame{Kind: schema.FrameBeat, Gen: "g1"}, false},
	} {
		if send(step.frame); stands() != step.stands {
			t.Errorf("after %+v the clock stands: %v", step.frame, !step.stands)
		}
	}
	close(steps)
	wg.Wait()
	if h.Session.Paused() == 0 {
		t.Error("no time was counted")
	}
}
