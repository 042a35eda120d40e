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

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
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

// asker asks model calls as a worker does.
func (b *bench) asker() func(number int) <-chan error {
	b.t.Helper()
	client, err := modelcall.NewClient(b.Broker, "w1", "i1")
	harness.Must(b.t, err)
	b.t.Cleanup(client.Close)
	caller := client.Caller(harness.Request("alpha-1").WithDefaults(), nil)
	return func(number int) <-chan error {
		c := schema.Call{V: 1, Key: schema.Key{Rollout: "alpha-1", Attempt: 1, Call: number}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}
		out := make(chan error, 1)
		go func() {
			r, err := testenv.Complete(b.t.Context(), caller, c, func(schema.Frame) error { return nil })
			if err == nil && (string(r.Message) != `{"role":"assistant","content":"ok"}` || r.PromptIDs.Len() != 2) {
				err = errors.New("the answer is " + string(r.Message))
			}
			out <- err
		}()
		return out
	}
}

func answerTo(key string) string {
	return `{"type":"answer","key":"` + key + `","reply":{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","prompt_ids":[1,2],"completion_ids":[3],"logprobs":[-0.5]}}`
}

// TestAWebSocketAnswersCalls: a call comes whole, an answer is checked, and a second one to
// the same call is none.
func TestAWebSocketAnswersCalls(t *testing.T) {
	b := newBench(t)
	h, ask := b.hand(alphaToken, ""), b.asker()
	other := b.hand(betaToken, "")
	got := ask(1)
	c := h.next(frameCall)
	if c.Key != "alpha-1/1/1" || c.Call == nil || len(c.Call.Messages) != 1 || c.Gen == "" {
		t.Fatalf("the call: %+v", c)
	}
	h.send(`{"type":"answer","key":"alpha-1/1/1","reply":{"message":{"role":"user"},"finish_reason":"stop"}}`)
	if e := h.next(frameError); e.Key != c.Key || !strings.HasPrefix(e.Field, "reply.message") {
		t.Errorf("a wrong answer: %+v", e)
	}
	h.send(`{"type":"answer","key":"alpha-1/1/1"}`)
	if e := h.next(frameError); e.Field != "reply" {
		t.Errorf("an answer without a reply: %+v", e)
	}
	h.send(`{"type":"delta","key":"alpha-1/1/1","delta":{"delta":{"content":"ok"},"completion_ids":[3],"logprobs":[-0.5]}}`)
	h.send(answerTo(c.Key))
	h.next(frameAnswered)
	harness.Must(t, <-got)
	h.send(answerTo(c.Key))
	if f := h.next(frameOver); f.Key != c.Key {
		t.Errorf("a second answer: %+v", f)
	}
	for text, field := range map[string]string{`{"type":"x"}`: "type", `{"type":"answer","kye":"a"}`: "kye", `[`: ""} {
		h.send(text)
		if e := h.next(frameError); e.Field != field || e.Code != schema.CodeInvalid {
			t.Errorf("%s: %+v", text, e)
		}
	}
	other.send(answerTo("alpha-1/1/2"))
	got = ask(2)
	h.next(frameCall)
	other.next(frameOver) // it has no such call
	h.send(`{"type":"refuse","key":"alpha-1/1/2","fault":{"code":"too_large","message":"no","status":413}}`)
	h.next(frameAnswered)
	var fault *schema.Fault
	if err := <-got; !errors.As(err, &fault) || fault.Status != 413 {
		t.Errorf("a refused call: %v", err)
	}
}

// TestACutWebSocketGetsItsCallsAgain: the call of a client that is cut off comes again under
// the same key, also at another front, and a shard has one client at a time.
func TestACutWebSocketGetsItsCallsAgain(t *testing.T) {
	b := newBench(t)
	h, ask := b.hand(alphaToken, ""), b.asker()
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
	if again := h.next(frameCall); again.Key != first.Key || again.Gen == first.Gen {
		t.Errorf("the call again: %+v, first %+v", again, first)
	}
	h.send(answerTo(first.Key))
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
