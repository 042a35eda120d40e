package front

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
)

// hand is a client of GET /v1/calls.
type hand struct {
	t    *testing.T
	conn *websocket.Conn
}

func (b *bench) hand(token, query string) *hand {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, strings.Replace(b.url, "http", "ws", 1)+"/v1/calls"+query, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}}) //nolint:bodyclose // the library closes it
	if err != nil {
		b.t.Fatalf("%v: %v", err, res)
	}
	conn.SetReadLimit(maxFrame)
	b.t.Cleanup(func() { conn.CloseNow() })
	return &hand{b.t, conn}
}

func (h *hand) send(text string) {
	h.t.Helper()
	harness.Must(h.t, h.conn.Write(h.t.Context(), websocket.MessageText, []byte(text)))
}

// next returns the next frame, which must have a type.
func (h *hand) next(kind string) frame {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	_, data, err := h.conn.Read(ctx)
	harness.Must(h.t, err)
	var f frame
	harness.Must(h.t, json.Unmarshal(data, &f))
	if f.Type != kind {
		h.t.Fatalf("the frame is %s, want %s", data, kind)
	}
	return f
}

// asker asks model calls as a worker does, which refuses the first answers.
func (b *bench) asker(refused int) func(number int) <-chan error {
	b.t.Helper()
	client, err := modelcall.NewClient(b.Broker, "w1", "i1")
	harness.Must(b.t, err)
	b.t.Cleanup(client.Close)
	caller := client.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	return func(number int) <-chan error {
		c := schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: number}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}
		out := make(chan error, 1)
		go func() {
			finals := 0
			r, err := testenv.Complete(b.t.Context(), caller, c, func(f schema.Frame) error {
				if f.Kind == schema.FrameFinal {
					finals++
				}
				if f.Kind == schema.FrameFinal && finals <= refused {
					return schema.Faultf("call", schema.CodeBadAnswer, schema.WhoTrainer, "refused")
				}
				return nil
			})
			if err == nil && (string(r.Message) != `{"role":"assistant","content":"ok"}` || r.PromptIDs.Len() != 2) {
				err = errors.New("the answer is " + string(r.Message))
			}
			out <- err
		}()
		return out
	}
}

func answerTo(c frame) string {
	return `{"type":"answer","key":"` + c.Key + `","gen":"` + c.Gen + `","reply":{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","prompt_ids":[1,2],"completion_ids":[3],"logprobs":[-0.5]}}`
}

// TestAWebSocketAnswersCalls: a call comes whole, an answer is checked, and a second one to
// the same call is none.
func TestAWebSocketAnswersCalls(t *testing.T) {
	b := newBench(t)
	h, ask := b.hand(alphaToken, ""), b.asker(0)
	other := b.hand(betaToken, "")
	got := ask(1)
	c := h.next(frameCall)
	if c.Key != "alpha-1/1/1" || c.Call == nil || len(c.Call.Messages) != 1 || c.Gen == "" {
		t.Fatalf("the call: %+v", c)
	}
	h.send(`{"type":"answer","key":"alpha-1/1/1","gen":"` + c.Gen + `","reply":{"message":{"role":"user"},"finish_reason":"stop"}}`)
	if e := h.next(frameError); e.Key != c.Key || e.Gen != c.Gen || !strings.HasPrefix(e.Field, "reply.message") {
		t.Errorf("a wrong answer: %+v", e)
	}
	h.refused(`{"type":"answer","key":"alpha-1/1/1","gen":"`+c.Gen+`"}`, "reply")
	h.refused(`{"type":"answer","key":"alpha-1/1/1"}`, "gen")
	h.send(answerTo(frame{Key: c.Key, Gen: "another"}))
	if f := h.next(frameOver); f.Key != c.Key || f.Gen != "another" {
		t.Errorf("an answer of another generation: %+v", f)
	}
	h.send(`{"type":"delta","key":"alpha-1/1/1","gen":"` + c.Gen + `","delta":{"delta":{"content":"ok"},"completion_ids":[3],"logprobs":[-0.5]}}`)
	h.send(answerTo(c))
	if f := h.next(frameAnswered); f.Key != c.Key || f.Gen != c.Gen {
		t.Errorf("the end of a call: %+v", f)
	}
	harness.Must(t, <-got)
	h.send(answerTo(c))
	if f := h.next(frameOver); f.Key != c.Key || f.Gen != c.Gen {
		t.Errorf("a second answer: %+v", f)
	}
	for text, field := range map[string]string{`{"type":"x"}`: "type", `{"type":"answer","kye":"a"}`: "kye", `[`: ""} {
		h.send(text)
		if e := h.next(frameError); e.Field != field || e.Code != schema.CodeInvalid {
			t.Errorf("%s: %+v", text, e)
		}
	}
	got = ask(2)
	c = h.next(frameCall)
	other.send(answerTo(c))
	other.next(frameOver) // it has no such call
	h.send(`{"type":"refuse","key":"alpha-1/1/2","gen":"` + c.Gen + `","fault":{"code":"too_large","message":"no","status":413}}`)
	h.next(frameAnswered)
	var fault *schema.Fault
	if err := <-got; !errors.As(err, &fault) || fault.Status != 413 {
		t.Errorf("a refused call: %v", err)
	}
}

// TestFramesOfACallAskedAgain: a call comes again if its worker refuses the answer, after the
// frame about its end, and frames of the client about the refused generation are of no other
// one.
func TestFramesOfACallAskedAgain(t *testing.T) {
	testenv.Slow(t)
	b := newBench(t)
	h, ask := b.hand(alphaToken, ""), b.asker(2)
	for number := range 10 {
		got := ask(number + 1)
		c := h.next(frameCall)
		for range 2 {
			h.send(answerTo(c))
			if f := h.next(frameAnswered); f.Gen != c.Gen {
				t.Fatalf("the end of generation %s: %+v", c.Gen, f)
			}
			again := h.next(frameCall)
			if again.Key != c.Key || again.Gen == c.Gen {
				t.Fatalf("the call again: %+v, before %+v", again, c)
			}
			h.send(`{"type":"delta","key":"` + c.Key + `","gen":"` + c.Gen + `","delta":{"delta":{"content":"late"}}}`)
			if f := h.next(frameOver); f.Key != c.Key || f.Gen != c.Gen {
				t.Fatalf("a late piece: %+v", f)
			}
			c = again
		}
		h.send(answerTo(c))
		h.next(frameAnswered)
		harness.Must(t, <-got)
	}
	got := ask(11)
	c := h.next(frameCall)
	h.send(`{"type":"abort"}`)
	if f := h.next(frameOver); f.Key != c.Key || f.Gen != c.Gen {
		t.Errorf("an aborted call: %+v", f)
	}
	for range 3 {
		h.send(answerTo(h.next(frameCall)))
		h.next(frameAnswered)
	}
	harness.Must(t, <-got)
}

// TestACutWebSocketGetsItsCallsAgain: the call of a client that is cut off comes again under
// the same key, also at another front, and a shard has one client at a time.
func TestACutWebSocketGetsItsCallsAgain(t *testing.T) {
	b := newBench(t)
	h, ask := b.hand(alphaToken, ""), b.asker(0)
	got := ask(1)
	first := h.next(frameCall)
	r := b.request("GET", "/v1/calls", alphaToken, nil)
	b.do(r, http.StatusUpgradeRequired, nil)
	_, res, err := websocket.Dial(t.Context(), strings.Replace(b.url, "http", "ws", 1)+"/v1/calls", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + alphaToken}}}) //nolint:bodyclose // the library closes it
	if err == nil || res.StatusCode != http.StatusConflict {
		t.Fatalf("a second client: %v, %v", res, err)
	}
	h.conn.CloseNow()
	b.url, _ = b.start()
	h = b.hand(alphaToken, "?take_over=true")
	again := h.next(frameCall)
	if again.Key != first.Key || again.Gen == first.Gen {
		t.Errorf("the call again: %+v, first %+v", again, first)
	}
	h.send(answerTo(again))
	h.next(frameAnswered)
	harness.Must(t, <-got)
	var stop func()
	b.url, stop = b.start()
	taker := b.hand(alphaToken, "?take_over=true")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := h.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("the client whose shard was taken: %v", err)
	}
	go stop()
	if _, _, err := taker.conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the client of a front that ends: %v", err)
	}
	stop()
	b.url, _ = b.start()
	b.hand(alphaToken, "") // a front that has ended has no shard any more
}

// TestTheTraceOfARollout: the traceparent of a request that submits reaches the worker, also
// through MCP, and that of a call, a tool call and a verification the client of the WebSocket.
func TestTheTraceOfARollout(t *testing.T) {
	const parent, call = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01", "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"
	b := newBench(t)
	submit := func(r *http.Request, status int) {
		t.Helper()
		r.Header.Set("traceparent", parent)
		r.Header.Add("tracestate", "a=b")
		r.Header.Add("tracestate", "c=d")
		b.do(r, status, nil)
		j := b.Take(t)
		h := map[string][]string{}
		traces.Put(h, j.Subject().Parent)
		if strings.Join(h["traceparent"], "|") != parent || strings.Join(h["tracestate"], "|") != "a=b,c=d" {
			t.Errorf("%s: the request has %v", r.URL.Path, h)
		}
		reward := 1.0
		harness.Must(t, j.Done(t.Context(), schema.Result{ID: j.Request.ID, Trainer: "alpha", Task: j.Request.Task.Name, Status: schema.StatusDone, Reward: &reward, Worker: "w1", Group: j.Request.Group}))
	}
	submit(b.request("POST", "/v1/rollouts", alphaToken, map[string]any{"requests": []any{plainRequest()}}), http.StatusAccepted)
	submit(b.request("POST", "/v1/groups", alphaToken, map[string]any{"n": 1, "request": plainRequest()}), http.StatusAccepted)
	r := b.request("POST", "/mcp", alphaToken, map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": "submit_rollout", "arguments": map[string]any{"request": plainRequest()}}})
	r.Header.Set("Accept", "application/json, text/event-stream")
	submit(r, http.StatusOK)

	client, err := modelcall.NewClient(b.Broker, "w1", "i1")
	harness.Must(t, err)
	defer client.Close()
	caller := client.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), traces.Of(map[string][]string{"traceparent": {call}, "tracestate": {"a=b"}}))
	h := b.hand(alphaToken, "?tools=search&verify=true")
	key := schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 1}.String()
	ended := make(chan error, 3)
	go func() {
		_, err := testenv.Complete(ctx, caller, schema.Call{V: 1, Key: key, Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}, func(schema.Frame) error { return nil })
		ended <- err
	}()
	c := h.next(frameCall)
	h.send(answerTo(c))
	h.next(frameAnswered)
	go func() {
		_, err := caller.Tool(ctx, schema.ToolCall{V: 1, Key: key, Name: "search", Arguments: json.RawMessage(`{}`)})
		ended <- err
	}()
	tool := h.next(frameTool)
	h.send(`{"type":"tool_result","key":"` + tool.Key + `","tool_result":{"text":"found"}}`)
	h.next(frameAnswered)
	go func() {
		_, err := caller.Verify(ctx, schema.Verification{V: 1, Key: key, Workdir: "/w", LimitMS: 60_000}, func(schema.Frame) error { return nil }, nil)
		ended <- err
	}()
	verify := h.next(frameVerify)
	h.send(`{"type":"verdict","key":"` + verify.Key + `","verdict":{"reward":1}}`)
	h.next(frameAnswered)
	for _, f := range []frame{c, tool, verify} {
		if f.Traceparent != call || f.Tracestate != "a=b" {
			t.Errorf("the frame %s has the trace %q, %q", f.Type, f.Traceparent, f.Tracestate)
		}
		harness.Must(t, <-ended)
	}
}

// TestAHoldOfSomeRollouts: calls of the rollouts of a hold wait, other calls come, and an abort
// of some ends theirs alone.
func TestAHoldOfSomeRollouts(t *testing.T) {
	b := newBench(t)
	client, err := modelcall.NewClient(b.Broker, "w1", "i1")
	harness.Must(t, err)
	defer client.Close()
	ended := make(chan error, 2)
	ask := func(id schema.ID) {
		caller := client.Caller(harness.Request(id).WithDefaults(), nil)
		go func() {
			_, err := testenv.Complete(t.Context(), caller, schema.Call{V: 1, Key: schema.Key{Rollout: id, Attempt: 1, Call: 1}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}, func(schema.Frame) error { return nil })
			ended <- err
		}()
	}
	h := b.hand(alphaToken, "")
	h.refused(`{"type":"hold","rollouts":["alpha-1","x"]}`, "rollouts[1]")
	h.refused(`{"type":"hold","rollouts":["alpha-1"`+strings.Repeat(`,"alpha-1"`, maxSelected)+`]}`, "rollouts")
	h.send(`{"type":"hold","rollouts":["alpha-1"]}`)
	h.refused(`{"type":"x"}`, "type") // the hold has begun
	ask("alpha-1")
	ask("alpha-2")
	other := h.next(frameCall)
	if other.Key != "alpha-2/1/1" {
		t.Fatalf("a call of %s", other.Key)
	}
	h.send(`{"type":"resume"}`)
	held := h.next(frameCall)
	h.send(`{"type":"abort","rollouts":["alpha-1"]}`)
	if f := h.next(frameOver); f.Gen != held.Gen {
		t.Errorf("the end of %+v", f)
	}
	again := h.next(frameCall)
	if again.Key != "alpha-1/1/1" {
		t.Errorf("the call again: %+v", again)
	}
	for _, c := range []frame{other, again} {
		h.send(answerTo(c))
		h.next(frameAnswered)
		harness.Must(t, <-ended)
	}
}
