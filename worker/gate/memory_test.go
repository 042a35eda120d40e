package gate_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

// TestBeyondItsMemoryASessionKeepsHashes and calls still travel as what is
// new, with the digest of the whole.
func TestBeyondItsMemoryASessionKeepsHashes(t *testing.T) {
	for _, limit := range []int64{0, 300, 1 << 20} {
		var shares []schema.Shares
		m := &gatetest.Model{Answer: func(_ context.Context, c schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
			shares = append(shares, c.Shares)
			if !bytes.Equal(c.Digest, c.HashesOf().Digest()) {
				t.Errorf("limit %d: the digest of %s is not its own", limit, c.Key)
			}
			return gatetest.Text("ok"), nil
		}}
		memory := gate.NewMemory(limit)
		h := gatetest.New(t, chatFixture(), m, schema.GateOptions{}, func(c *gate.Config) { c.Memory = memory })
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
		if used := memory.Used(); used > limit || limit > 1000 && used == 0 {
			t.Errorf("limit %d: %d bytes are kept", limit, used)
		}
		h.Session.Close()
		if used := memory.Used(); used != 0 {
			t.Errorf("limit %d: %d bytes are kept after the end", limit, used)
		}
	}
}
