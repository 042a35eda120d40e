package front

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// caller is a worker that asks for tool calls and verifications of alpha-1.
func (b *bench) caller() *modelcall.Caller {
	b.t.Helper()
	client, err := modelcall.NewClient(b.Broker, "w1", "i1")
	harness.Must(b.t, err)
	b.t.Cleanup(client.Close)
	return client.Caller(harness.Request("alpha-1").WithDefaults(), nil)
}

// refused sends a frame and checks the field of the error about it.
func (h *hand) refused(text, field string) {
	h.t.Helper()
	h.send(text)
	if e := h.next(frameError); e.Field != field {
		h.t.Errorf("%s: %+v, want the field %s", text, e, field)
	}
}

// TestAWebSocketRunsTools: a call comes once and again after a cut, and its result, which
// may be an error, reaches the worker.
func TestAWebSocketRunsTools(t *testing.T) {
	b := newBench(t)
	h, caller := b.hand(alphaToken, "?tools=search,other"), b.caller()
	type outcome struct {
		result schema.ToolResult
		err    error
	}
	run := func(number int, name string) <-chan outcome {
		out := make(chan outcome, 1)
		go func() {
			r, err := caller.Tool(t.Context(), schema.ToolCall{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: number}.String(), Name: name, Arguments: json.RawMessage(`{"q":1}`)})
			out <- outcome{r, err}
		}()
		return out
	}
	got := run(1, "search")
	first := h.next(frameTool)
	if first.Key != "tool/alpha-1/1/1" || first.Tool == nil || first.Tool.Name != "search" || string(first.Tool.Arguments) != `{"q":1}` {
		t.Fatalf("the tool call: %+v", first)
	}
	h.refused(`{"type":"verdict","key":"tool/alpha-1/1/1","verdict":{"reward":1}}`, "type")
	h.refused(`{"type":"tool_result","key":"tool/alpha-1/1/1"}`, "tool_result")
	h.refused(`{"type":"tool_result","key":"tool/alpha-1/1/1","tool_result":{"text":"`+strings.Repeat("x", schema.MaxToolText+1)+`"}}`, "tool_result.text")
	h.conn.CloseNow()
	b.url, _ = b.start()
	h = b.hand(alphaToken, "?tools=search,other&take_over=true&parallel=1")
	if again := h.next(frameTool); again.Key != first.Key {
		t.Errorf("the tool call again: %+v", again)
	}
	h.send(`{"type":"tool_result","key":"tool/alpha-1/1/1","tool_result":{"text":"found"}}`)
	h.next(frameAnswered)
	if o := <-got; o.err != nil || o.result.Text != "found" || o.result.IsError {
		t.Errorf("the result: %+v", o)
	}
	h.send(`{"type":"tool_result","key":"tool/alpha-1/1/1","tool_result":{"text":"again"}}`)
	h.next(frameOver)
	got, later := run(2, "other"), run(3, "other")
	one := h.next(frameTool)
	h.send(`{"type":"tool_result","key":"` + one.Key + `","tool_result":{"text":"no such page","is_error":true}}`)
	h.next(frameAnswered)
	two := h.next(frameTool) // after the first one: parallel is 1
	h.send(`{"type":"tool_result","key":"` + two.Key + `","tool_result":{"text":"no such page","is_error":true}}`)
	h.next(frameAnswered)
	for _, o := range []outcome{<-got, <-later} {
		if o.err != nil || !o.result.IsError || o.result.Text != "no such page" {
			t.Errorf("a tool that fails: %+v", o)
		}
	}
	var fault *schema.Fault
	if o := <-run(4, "unknown"); !errors.As(o.err, &fault) || fault.Status != 400 {
		t.Errorf("a tool that the client has not: %+v", o)
	}
}

// TestAWebSocketVerifies: a verification with operations in its sandbox, which comes again
// after a cut.
func TestAWebSocketVerifies(t *testing.T) {
	testenv.Slow(t)
	b := newBench(t)
	h, caller := b.hand(alphaToken, "?verify=true"), b.caller()
	verdicts := make(chan schema.Verdict, 1)
	failed := make(chan error, 1)
	verify := func(step int) {
		go func() {
			v := schema.Verification{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: step}.String(), Workdir: "/w", LimitMS: 60_000}
			verdict, err := caller.Verify(t.Context(), v, func(schema.Frame) error { return nil }, func(ctx context.Context, _ int, op *schema.Operation) (schema.OperationResult, error) {
				switch op.Path {
				case "slow":
					<-ctx.Done()
					return schema.OperationResult{}, context.Cause(ctx)
				case "missing":
					f := schema.Faultf("verify", schema.CodeInvalid, schema.WhoTrainer, "no such file")
					f.Status = 404
					return schema.OperationResult{}, f
				}
				return schema.OperationResult{V: 1, Data: []byte("content of " + op.Path)}, nil
			})
			if err != nil {
				failed <- err
				return
			}
			verdicts <- verdict
		}()
	}
	operate := func(number int, path string) string {
		return fmt.Sprintf(`{"type":"operate","key":"verify/alpha-1/1/1","number":%d,"operation":{"do":"read","path":%q}}`, number, path)
	}
	verify(1)
	first := h.next(frameVerify)
	if first.Key != "verify/alpha-1/1/1" || first.Verification == nil || first.Verification.Workdir != "/w" {
		t.Fatalf("the verification: %+v", first)
	}
	h.send(operate(1, "a.txt"))
	if out := h.next(frameOperated); out.Number != 1 || out.Result == nil || string(out.Result.Data) != "content of a.txt" {
		t.Errorf("an operation: %+v", out)
	}
	h.send(operate(2, "missing"))
	if out := h.next(frameOperated); out.Number != 2 || out.Fault == nil || out.Fault.Status != 404 {
		t.Errorf("an operation that fails: %+v", out)
	}
	h.refused(`{"type":"operate","key":"verify/alpha-1/1/1","number":3,"operation":{"do":"move"}}`, "operation.do")
	h.refused(`{"type":"operate","key":"verify/alpha-1/1/1","number":3}`, "operation")
	h.refused(`{"type":"tool_result","key":"verify/alpha-1/1/1","tool_result":{"text":"x"}}`, "type")
	h.refused(`{"type":"verdict","key":"verify/alpha-1/1/1"}`, "verdict")
	h.refused(`{"type":"refuse","key":"verify/alpha-1/1/1","fault":{"message":"x"}}`, "fault.code")
	h.send(operate(4, "slow"))
	h.send(operate(5, "a.txt"))
	if e := h.next(frameError); e.Code != codeBusy || e.Number != 5 {
		t.Errorf("an operation beside another: %+v", e)
	}
	h.conn.CloseNow()
	b.url, _ = b.start()
	h = b.hand(alphaToken, "?verify=true&take_over=true")
	if again := h.next(frameVerify); again.Key != first.Key {
		t.Errorf("the verification again: %+v", again)
	}
	h.send(operate(1, "b.txt"))
	if out := h.next(frameOperated); out.Result == nil || string(out.Result.Data) != "content of b.txt" {
		t.Errorf("an operation after the cut: %+v", out)
	}
	h.send(`{"type":"verdict","key":"verify/alpha-1/1/1","verdict":{"reward":0.25,"metrics":{"n":2}}}`)
	h.next(frameAnswered)
	if v := <-verdicts; v.Reward == nil || *v.Reward != 0.25 || v.Metrics["n"] != 2 {
		t.Errorf("the verdict: %+v", v)
	}
	verify(2)
	h.next(frameVerify)
	h.send(`{"type":"refuse","key":"verify/alpha-1/1/2","fault":{"code":"no_reward","message":"no"}}`)
	h.next(frameAnswered)
	var fault *schema.Fault
	if err := <-failed; !errors.As(err, &fault) || fault.Code != schema.CodeNoReward || fault.Status != 422 {
		t.Errorf("a verification without a reward: %v", err)
	}
}

// TestLargeFrames: a frame above smallFrame is read whole, and one above maxFrame ends the
// WebSocket.
func TestLargeFrames(t *testing.T) {
	b := newBench(t)
	h := b.hand(alphaToken, "")
	h.send(`{"type":"answer","gen":"x","key":"` + strings.Repeat("x", 3*smallFrame) + `"}`)
	if f := h.next(frameOver); len(f.Key) > 200 {
		t.Errorf("the key has %d bytes", len(f.Key))
	}
	h.send(strings.Repeat(" ", maxFrame+1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := h.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("after a frame above the bound: %v", err)
	}
}
