package gate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// TestBeyondItsMemoryASessionKeepsHashes: calls still travel as their new part,
// with the digest of the whole.
func TestBeyondItsMemoryASessionKeepsHashes(t *testing.T) {
	for _, limit := range []int64{0, 3000, 1 << 20} {
		var shares []schema.Shares
		m := &gatetest.Model{Answer: func(_ context.Context, c schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
			shares = append(shares, c.Shares)
			if !bytes.Equal(c.Digest, harness.HashesOf(&c).Digest()) {
				t.Errorf("limit %d: the digest of %s is not its own", limit, c.Key)
			}
			return gatetest.Text("ok"), nil
		}}
		memory := gate.NewMemory(limit, 0)
		h := gatetest.New(t, gatetest.Chat(), m, schema.GateOptions{}, func(c *gate.Config) { c.Memory = memory })
		var messages []string
		for turn := range 12 {
			messages = append(messages, fmt.Sprintf(`{"role":"user","content":"turn %d"}`, turn))
			if status, body := h.Ask(`{"model":"policy","tools":[{"x":1}],"messages":[` + strings.Join(messages, ",") + `]}`); status != 200 {
				t.Fatalf("limit %d: %d %s", limit, status, body)
			}
		}
		for turn, s := range shares {
			if want := (schema.Shares{Base: turn, Keep: turn, Tools: true, Params: true}); turn > 0 && s != want {
				t.Errorf("limit %d: call %d shares %+v, want %+v", limit, turn+1, s, want)
			}
		}
		if used, _ := memory.Used(); used > limit || limit > 1000 && used == 0 {
			t.Errorf("limit %d: %d bytes are kept", limit, used)
		}
		h.Session.Close()
		if used, requests := memory.Used(); used != 0 || requests != 0 {
			t.Errorf("limit %d: %d bytes of conversations and %d of requests are kept after the end", limit, used, requests)
		}
	}
}

// TestOneSessionsRequestsLeaveRoomForAnothers: when one agent's requests use up
// the worker's bound, another agent's requests are still read.
func TestOneSessionsRequestsLeaveRoomForAnothers(t *testing.T) {
	for _, f := range gatetest.Fixtures() {
		memory := gate.NewMemory(1<<20, 32<<20)
		share := func(c *gate.Config) { c.Memory, c.MaxRetained = memory, 1<<30 }
		release := make(chan struct{})
		greedy := gatetest.New(t, f, &gatetest.Model{Answer: func(ctx context.Context, _ schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return gatetest.Text("ok"), nil
		}}, schema.GateOptions{MaxParallel: 64}, share)
		modest := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{}, share)
		var open sync.WaitGroup
		statuses := make(chan int, 20)
		for i := range cap(statuses) {
			open.Go(func() {
				res, err := greedy.Post(t.Context(), f.Body(fmt.Sprint(i, strings.Repeat("x", 2<<20)), true))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				statuses <- res.StatusCode
				_, _ = io.Copy(io.Discard, res.Body)
			})
		}
		for status := 0; status != http.StatusTooManyRequests; {
			select {
			case status = <-statuses:
			case <-time.After(30 * time.Second):
				t.Fatalf("%s: none is refused", f.Dialect.Name())
			}
		}
		if status, body := modest.Ask(f.Body(strings.Repeat("x", 300_000), false)); status != 200 {
			t.Errorf("%s: the other session gets %d %.200s", f.Dialect.Name(), status, body)
		}
		close(release)
		open.Wait()
		greedy.Session.Close()
		modest.Session.Close()
		if conversations, requests := memory.Used(); conversations != 0 || requests != 0 {
			t.Errorf("%s: %d bytes of conversations and %d of requests are kept after the end", f.Dialect.Name(), conversations, requests)
		}
	}
}

// TestTooManyParts of a request are refused in the dialect's words before they
// are read, and so is a conversation that grows by naming the one before.
func TestTooManyParts(t *testing.T) {
	for _, f := range gatetest.Fixtures() {
		h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
		many := f.Talk.Body(slices.Repeat([]string{"x"}, 60_000), nil, 1)
		status, answer := h.Ask(many)
		if status != http.StatusRequestEntityTooLarge || !json.Valid(answer) {
			t.Errorf("%s: %d %.300s", f.Dialect.Name(), status, answer)
		}
		if h.Model.Calls.Load() != 0 {
			t.Errorf("%s: the call was made", f.Dialect.Name())
		}
	}
}
