package gatetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// retainedBytes: an agent that opens giant calls cannot fill the worker's memory.
func retainedBytes(t *testing.T, f Fixture) {
	release := make(chan struct{})
	h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{MaxParallel: 64})
	const size, calls = MaxRetained / 17, 20
	body := f.Body(strings.Repeat("x", size), false)
	var open sync.WaitGroup
	var refused atomic.Int32
	for i := range calls {
		open.Go(func() {
			res, err := h.Post(t.Context(), strings.Replace(body, "xxxx", "x"+string(rune('a'+i))+"xx", 1))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if res.StatusCode == http.StatusTooManyRequests {
				refused.Add(1)
			}
			_, _ = io.Copy(io.Discard, res.Body)
		})
		harness.Eventually(t, "the call", timeLimit, func() bool { return int(h.Model.Calls.Load()+refused.Load()) == i+1 })
	}
	close(release)
	open.Wait()
	// MaxRetained has the size of seventeen bodies. The new part of a body takes
	// twice its size again until it is answered, and more while it is read.
	if n := calls - refused.Load(); n < 4 || n > 8 {
		t.Errorf("%d of %d calls were taken, want 4 to 8", n, calls)
	}
	if status, answer := h.Ask(f.Body("and now", false)); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, answer)
	}
}

func callCap(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{MaxCalls: 2})
	for i := range 3 {
		status, _ := h.Ask(f.Body(strings.Repeat("x", i+1), false))
		if (status == 200) != (i < 2) {
			t.Errorf("call %d: %d", i+1, status)
		}
	}
	<-h.Session.Done()
	if fault := h.Session.Fault(); fault == nil || fault.Code != schema.CodeCallCap || fault.Who != schema.WhoAgent {
		t.Errorf("fault %+v", fault)
	}
}

func tokenCap(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{MaxTokens: 5})
	for i := range 3 { // three tokens each
		status, _ := h.Ask(f.Body(strings.Repeat("x", i+1), false))
		if (status == 200) != (i < 2) {
			t.Errorf("call %d: %d", i+1, status)
		}
	}
	<-h.Session.Done()
	if fault := h.Session.Fault(); fault == nil || fault.Code != schema.CodeTokenCap {
		t.Errorf("fault %+v", fault)
	}
}

// repeats: calls without progress end the session, because of equal prompts or equal
// answers. A new prompt or another answer begins the count anew.
func repeats(t *testing.T, f Fixture) {
	for name, o := range map[string]struct {
		prompts, answers []string
		fault            bool
	}{
		"same prompt":    {[]string{"a", "a", "a"}, []string{"1", "2", "3"}, true},
		"same answer":    {[]string{"a", "b", "c"}, []string{"1", "1", "1"}, true},
		"another prompt": {[]string{"a", "a", "b", "a", "a"}, []string{"1", "2", "3", "4", "5"}, false},
		"another answer": {[]string{"a", "b", "c", "d", "e"}, []string{"1", "2", "1", "2", "2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			at := 0
			h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
				at++
				return saying(fmt.Sprintf(`{"role":"assistant","content":%q}`, o.answers[at-1]), "stop")(ctx, c, frames)
			}}, schema.GateOptions{MaxRepeats: 2})
			for i, prompt := range o.prompts {
				status, text := h.Ask(f.Body(prompt, false))
				if want := !o.fault || i < len(o.prompts)-1; (status == http.StatusOK) != want {
					t.Errorf("call %d: %d %s", i+1, status, text)
				}
			}
			if !o.fault {
				return
			}
			<-h.Session.Done()
			if fault := h.Session.Fault(); fault == nil || fault.Code != schema.CodeRepeats || fault.Who != schema.WhoAgent {
				t.Errorf("fault %+v", fault)
			}
			if at != len(o.prompts)-1 || h.Session.Calls() != at {
				t.Errorf("%d answers, %d calls", at, h.Session.Calls())
			}
		})
	}
}

func parallel(t *testing.T, f Fixture) {
	release := make(chan struct{})
	var now, most atomic.Int32
	h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		return blocking(release)(ctx, c, frames)
	}}, schema.GateOptions{MaxParallel: 3})
	var wg sync.WaitGroup
	var refused atomic.Int32
	for i := range 70 {
		wg.Go(func() {
			res, err := h.Post(t.Context(), f.Body(strings.Repeat("x", i+1), false))
			if err != nil {
				t.Error(err)
				return
			}
			if res.StatusCode == 429 {
				refused.Add(1)
				if res.Header.Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		})
	}
	harness.Eventually(t, "three calls at once", timeLimit, func() bool { return now.Load() == 3 })
	harness.Eventually(t, "six refusals", timeLimit, func() bool { return refused.Load() == 6 })
	close(release)
	wg.Wait()
	if most.Load() != 3 || refused.Load() != 6 {
		t.Errorf("%d at once, %d refused", most.Load(), refused.Load())
	}
}
