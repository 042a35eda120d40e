package gate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// TestARefusalIsShort, also if it repeats a part of the request.
func TestARefusalIsShort(t *testing.T) {
	long := strings.Repeat("\x7f", 1<<20)
	for name, bodies := range map[string][]string{
		"chat":      {`{"messages":[{}],"n":[` + strings.Repeat("1,", 1<<15) + `1]}`, `{"messages":[{}],"` + long + `":1,"` + long + `":1}`},
		"responses": {`{"input":[{"role":"` + long + `"}]}`, `{"input":[{"type":"` + long + `"}]}`, `{"input":"x","previous_response_id":"` + long + `"}`, `{"input":"x","tools":[{"type":"` + long + `"}]}`},
		"messages": {`{"messages":[{"role":"` + long + `","content":"x"}]}`, `{"messages":[{"role":"user","content":[{"type":"` + long + `"}]}]}`,
			`{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"` + long + `","name":"` + long + `"}]}`},
		"gemini": {`{"contents":[{"role":"` + long + `","parts":[]}]}`, `{"contents":[{"parts":[]}],"tools":[{"` + long + `":1}]}`, `{"contents":[{"parts":[]}],"generationConfig":{"responseMimeType":"` + long + `"}}`},
	} {
		for _, f := range gatetest.Fixtures() {
			if f.Dialect.Name() != name {
				continue
			}
			h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
			for _, body := range bodies {
				if status, answer := h.Ask(body); status != http.StatusBadRequest || len(answer) > 2000 {
					t.Errorf("%s, %.60s: %d with %d bytes", name, body, status, len(answer))
				}
			}
		}
	}
}

// TestAFieldThatNoTrainerTakes is the agent's mistake, not the trainer's.
func TestAFieldThatNoTrainerTakes(t *testing.T) {
	var members strings.Builder
	for i := range 300 {
		fmt.Fprintf(&members, `,"p%d":1`, i)
	}
	with := func(model string) string {
		return `{"model":"` + model + `","messages":[{"role":"user","content":"x"}]}`
	}
	for _, tt := range []struct {
		f           gatetest.Fixture
		body, field string
	}{
		{gatetest.Chat(), with(strings.Repeat("m", 300)), "model"},
		{gatetest.Anthropic(), with(`a\u0000b`), "model"},
		{gatetest.Gemini(), `{"contents":[{"parts":[{"text":"x"}]}],"generationConfig":{"a":1` + members.String() + `}}`, "params"},
		{gatetest.Responses(), `{"input":"x","text":{"a":1` + members.String() + `}}`, "params"},
	} {
		h := gatetest.New(t, tt.f, &gatetest.Model{}, schema.GateOptions{})
		status, answer := h.Ask(tt.body)
		if status != http.StatusBadRequest || !strings.Contains(string(answer), tt.field) || h.Model.Calls.Load() != 0 || h.Session.Calls() != 0 {
			t.Errorf("%s: %d %s, %d calls", tt.f.Dialect.Name(), status, answer, h.Model.Calls.Load())
		}
		if status, answer := h.Ask(tt.f.Body("hi", false)); status != http.StatusOK {
			t.Errorf("%s: the next call: %d %s", tt.f.Dialect.Name(), status, answer)
		}
	}
}

// TestOddToolCalls: indices that are missing or not in a row, and a missing type,
// do not keep a client from the call.
func TestOddToolCalls(t *testing.T) {
	function := `"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}`
	for name, tt := range map[string]struct{ piece, whole, want string }{
		"no index":   {`{"tool_calls":[{` + function + `}]}`, `{"tool_calls":[{` + function + `}]}`, "f {}"},
		"null index": {`{"tool_calls":[{"index":null,` + function + `}]}`, `{"tool_calls":[{` + function + `}]}`, "f {}"},
		"index 5":    {`{"tool_calls":[{"index":5,` + function + `}]}`, `{"tool_calls":[{` + function + `}]}`, "f {}"},
		"no type":    {`{"tool_calls":[{"index":0,"id":"c1","custom":{"name":"f","input":"{}"}}]}`, `{"tool_calls":[{"id":"c1","custom":{"name":"f","input":"{}"}}]}`, "f {}"},
	} {
		for _, f := range gatetest.Fixtures() {
			if d := f.Dialect.Name(); name == "no type" && (d == "chat" || d == "responses") { // passed on as it came, or a custom_tool_call
				continue
			}
			h := gatetest.New(t, f, &gatetest.Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
				r := gatetest.Text("")
				r.Message, r.FinishReason = json.RawMessage(tt.whole), "tool_calls"
				return r, frames(schema.Frame{Kind: schema.FrameDelta, Gen: "g1", Delta: &schema.Delta{V: 1, Delta: json.RawMessage(tt.piece)}})
			}}, schema.GateOptions{Stream: schema.StreamPass})
			for _, stream := range []bool{false, true} {
				_, answer := h.Ask(f.Body("hi", stream))
				if _, tools := f.Read(t, answer, stream); len(tools) != 1 || tools[0] != tt.want {
					t.Errorf("%s, %s, stream %v: it reads %q", name, f.Dialect.Name(), stream, tools)
				}
			}
		}
	}
}

// TestToolCallsOfAStreamAreBounded: the gate keeps the index of each.
func TestToolCallsOfAStreamAreBounded(t *testing.T) {
	var pieces, whole []string
	for i := range 5000 {
		call := fmt.Sprintf(`"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}`, i)
		pieces, whole = append(pieces, fmt.Sprintf(`{"index":%d,`, 3*i)+call), append(whole, "{"+call)
	}
	f := gatetest.Chat()
	h := gatetest.New(t, f, &gatetest.Model{Answer: func(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		r := gatetest.Text("")
		r.Message, r.FinishReason = json.RawMessage(`{"tool_calls":[`+strings.Join(whole, ",")+`]}`), "tool_calls"
		return r, frames(schema.Frame{Kind: schema.FrameDelta, Gen: "g1", Delta: &schema.Delta{V: 1, Delta: json.RawMessage(`{"tool_calls":[` + strings.Join(pieces, ",") + `]}`)}})
	}}, schema.GateOptions{Stream: schema.StreamPass})
	if _, answer := h.Ask(f.Body("hi", true)); !strings.Contains(string(answer), "error") || strings.Contains(string(answer), `"c4999"`) {
		t.Errorf("the agent got %.500s", answer)
	}
}

// TestBytesThatAreNotUTF8 take three times their size as U+FFFD, which is
// counted before it is done.
func TestBytesThatAreNotUTF8(t *testing.T) {
	f := gatetest.Gemini()
	h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
	body := strings.Replace(f.Body("HERE", false), "HERE", strings.Repeat("\xff", 10<<20), 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	status, _ := h.Ask(body)
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; status != http.StatusRequestEntityTooLarge || took > 100 {
		t.Errorf("%d, after %d MB", status, took)
	}
	if status, answer := h.Ask(strings.Replace(f.Body("HERE", false), "HERE", strings.Repeat("\xff", 1<<20), 1)); status != http.StatusOK {
		t.Errorf("a smaller one: %d %.300s", status, answer)
	}
}

// TestTheSameBodyElsewhereIsAnotherCall, since its answer has another form.
func TestTheSameBodyElsewhereIsAnotherCall(t *testing.T) {
	f := gatetest.Gemini()
	release := make(chan struct{})
	m := &gatetest.Model{Answer: func(ctx context.Context, _ schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return gatetest.Text("ok"), nil
	}}
	h := gatetest.New(t, f, m, schema.GateOptions{}, func(c *gate.Config) { c.Timing.Equal = time.Hour })
	body := f.Body("hi", false)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(release)
	for path, begins := range map[string]string{
		"/v1beta/models/policy:generateContent":               "{",
		"/v1beta/models/policy:streamGenerateContent":         "[",
		"/v1beta/models/policy:streamGenerateContent?alt=sse": "data: ",
	} {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+h.Session.Key())
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			answer, err := io.ReadAll(res.Body)
			if err != nil || !strings.HasPrefix(string(answer), begins) || !strings.Contains(string(answer), `"text":"ok"`) {
				t.Errorf("%s: %v %q", path, err, answer)
			}
		})
	}
	harness.Eventually(t, "three calls", 5*time.Minute, func() bool { return m.Calls.Load() == 3 })
}

// TestABrokenBodyIsRefused sends bodies with a wrong transfer encoding, or without
// an end, over connections of their own, for whole and streamed answers.
func TestABrokenBodyIsRefused(t *testing.T) {
	for _, f := range gatetest.Fixtures() {
		h := gatetest.New(t, f, &gatetest.Model{}, schema.GateOptions{})
		for _, stream := range []bool{false, true} {
			body := f.Body("hi", stream)
			for name, sent := range map[string]string{
				"chunk length that is not hex": "Transfer-Encoding: chunked\r\n\r\nxyz\r\n" + body + "\r\n0\r\n\r\n",
				"chunk length too short":       fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body)-5, body),
				"chunk length too long":        fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body)+1, body),
				"bare line feeds":              fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\n%s\n0\n\n", len(body), body),
				"no end":                       fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body)+1, body),
			} {
				status, answer := rawExchange(t, h, "POST "+f.Path(body)+" HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer "+h.Session.Key()+"\r\n"+sent)
				var refusal struct{ Error struct{ Message string } }
				_ = json.Unmarshal(answer, &refusal) // leaves the message empty
				want := f.Dialect.Fail(dialect.Refusal{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: refusal.Error.Message})
				if status != http.StatusBadRequest || refusal.Error.Message == "" || string(answer) != string(want) {
					t.Errorf("%s, stream %v, %s: %d %q", f.Dialect.Name(), stream, name, status, answer)
				}
			}
		}
		if n := h.Model.Calls.Load(); n != 0 {
			t.Errorf("%s: %d calls reached the model", f.Dialect.Name(), n)
		}
	}
}

// rawExchange sends bytes over a new connection, closes its sending side, and reads
// the answer.
func rawExchange(t *testing.T, h *gatetest.Harness, request string) (status int, answer []byte) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if answer, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, answer
}
