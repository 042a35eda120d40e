// Package gatetest checks a dialect, and the session behind it, against the
// rules of a model call. A dialect's tests call Run with requests in that
// dialect; the checks are the same for all.
package gatetest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/schema"
)

// timeLimit is the time limit of a condition.
const timeLimit = 30 * time.Second

// Model is a scripted gate.Model.
type Model struct {
	// Answer is called for each call, and returns the answer; nil answers with the text
	// "ok".
	Answer func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error)

	Calls     atomic.Int32 // calls that arrived
	Cancelled atomic.Int32 // calls that were cancelled
}

// Complete implements gate.Model.
func (m *Model) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error {
	m.Calls.Add(1)
	r, err := Text("ok"), error(nil)
	if m.Answer != nil {
		r, err = m.Answer(ctx, c, frames)
	}
	if err == nil {
		err = frames(schema.Frame{Kind: schema.FrameFinal, Gen: "g1", Reply: &r})
	}
	if ctx.Err() != nil {
		m.Cancelled.Add(1)
	}
	return err
}

// Text returns a reply with a text.
func Text(text string) schema.Reply {
	content, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return schema.Reply{
		V: 1, Message: json.RawMessage(`{"role":"assistant","content":` + string(content) + `}`), FinishReason: "stop",
		Usage: schema.Usage{PromptTokens: 7, CompletionTokens: 3}, PromptIDs: schema.PackTokenIDs([]int32{424242}),
		CompletionIDs: schema.PackTokenIDs([]int32{434343}), Logprobs: schema.PackLogprobs([]float32{-0.515151}),
	}
}

// Timing returns rules that are fast enough for tests.
func Timing() gate.Timing {
	return gate.Timing{
		Headers: 100 * time.Millisecond, KeepAlive: 50 * time.Millisecond, Orphan: 2 * time.Second,
		Equal: 200 * time.Millisecond, Retry: 5 * time.Second, Cap: 200 * time.Millisecond,
	}
}

// MaxRetained is small enough to be filled quickly, and takes the largest body.
const MaxRetained = 40 << 20

// Harness is a session behind a real HTTP server.
type Harness struct {
	T       *testing.T
	F       Fixture
	Session *gate.Session
	Model   *Model
	URL     string

	closed atomic.Int32 // clients that went away
}

// New starts a session for a fixture.
func New(t *testing.T, f Fixture, m *Model, o schema.GateOptions, change ...func(*gate.Config)) *Harness {
	t.Helper()
	o.MaxRepeats = cmp.Or(o.MaxRepeats, 1<<30) // most tests repeat one prompt, and the model has one answer
	r := schema.Request{Gate: o}.WithDefaults()
	c := gate.Config{
		Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: r.Gate, Model: m, Dialects: []dialect.Dialect{f.Dialect}, Timing: Timing(), MaxRetained: MaxRetained, Log: zerolog.Nop(),
	}
	for _, f := range change {
		f(&c)
	}
	s := gate.Open(t.Context(), c)
	h := &Harness{T: t, F: f, Session: s, Model: m}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer context.AfterFunc(r.Context(), func() { h.closed.Add(1) })()
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	h.URL = srv.URL
	return h
}

// Post sends one request; headers are "Name: value" lines.
func (h *Harness) Post(ctx context.Context, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+h.F.Path(body), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+h.Session.Key())
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	return http.DefaultClient.Do(req)
}

// Ask sends one request and reads its answer.
func (h *Harness) Ask(body string, headers ...string) (status int, answer []byte) {
	h.T.Helper()
	res, err := h.Post(h.T.Context(), body, headers...)
	if err != nil {
		h.T.Fatal(err)
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	if err != nil {
		h.T.Fatal(err)
	}
	return res.StatusCode, answer
}

// Run runs the whole suite.
func Run(t *testing.T, f Fixture) {
	tests := map[string]func(*testing.T, Fixture){
		"answers whole and streamed":               answers,
		"tool calls":                               toolCalls,
		"training data never reaches the agent":    noTokens,
		"a slow answer is kept alive":              keepAlive,
		"a refusal has its status":                 refusals,
		"a late refusal is in the body":            lateRefusal,
		"the newest refusal is known":              newestRefusal,
		"unknown key and ended session":            keys,
		"models and health":                        models,
		"bodies that are too large or no request":  badBodies,
		"retained bytes are bounded":               retainedBytes,
		"call cap":                                 callCap,
		"token cap":                                tokenCap,
		"repeats":                                  repeats,
		"calls at once are bounded":                parallel,
		"a re-sent request attaches to its orphan": orphan,
		"equal requests at once are two calls":     equalCalls,
		"a retry waits for its predecessor":        retryWaits,
		"an orphan is given up in the end":         orphanEnds,
		"the end of the session gives calls up":    closeCancels,
		"pass streams what comes":                  pass,
		"a broken pass stream closes its key":      passBroken,
		"another generation does not mix in":       passRegenerated,
		"no trainer ends the session":              noTrainer,
		"the clock stands without a trainer":       clock,
		"an answer that no agent can read":         unwritable,
		"arguments that are no object":             badArguments,
		"ids of calls":                             callIDs,
		"arguments come back as the model's":       ownArguments,
		"reasoning comes back where it is wanted":  ownReasoning,
		"finish reasons agree with the calls":      finishReasons,
		"pieces that are not the whole":            differing,
		"text that is no Unicode":                  noUnicode,
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) { run(t, f) })
	}
	if len(tests) == 0 {
		t.Fatal("the suite is empty")
	}
}

func answers(t *testing.T, f Fixture) {
	h := New(t, f, &Model{Answer: func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
		r, cost := Text("hé \"quoted\"\n\u2028"), 0.25
		r.Usage.CachedTokens, r.Usage.CostUSD = 5, &cost
		return r, nil
	}}, schema.GateOptions{})
	for i, stream := range []bool{false, true} {
		status, body := h.Ask(f.Body("hi", stream))
		text, tools := f.Read(t, body, stream)
		if status != 200 || text != "hé \"quoted\"\n\u2028" || len(tools) != 0 {
			t.Errorf("stream %v: %d %q %v", stream, status, text, tools)
		}
		stats, committed := h.Session.Stats()
		if stats[schema.TagAgent].Count != i+1 || stats[schema.TagAgent].CompletionTokens != int64(3*(i+1)) || len(committed) != i+1 || committed[i].Gen != "g1" {
			t.Errorf("stats %+v, committed %+v", stats, committed)
		}
		if s := stats[schema.TagAgent]; s.CachedTokens != int64(5*(i+1)) || s.CostUSD == nil || *s.CostUSD != 0.25*float64(i+1) {
			t.Errorf("stats %+v, cost %v", s, s.CostUSD)
		}
	}
}

func toolCalls(t *testing.T, f Fixture) {
	h := New(t, f, &Model{Answer: func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
		r := Text("")
		r.FinishReason = "tool_calls"
		r.Message = json.RawMessage(`{"role":"assistant","content":null,"tool_calls":[` +
			`{"id":"c1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"a\"}"}},` +
			"\n" + `{"id":"c2","type":"function","function":{"name":"bash","arguments":"{\"command\":\"b\"}"}}]}`)
		return r, nil
	}}, schema.GateOptions{})
	for _, stream := range []bool{false, true} {
		_, body := h.Ask(f.Body("hi", stream))
		if _, tools := f.Read(t, body, stream); strings.Join(tools, "|") != `bash {"command":"a"}|bash {"command":"b"}` {
			t.Errorf("stream %v: %v in %s", stream, tools, body)
		}
	}
}

func noTokens(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{})
	for _, stream := range []bool{false, true} {
		_, body := h.Ask(f.Body("hi", stream))
		for _, secret := range []string{"424242", "434343", "0.515151", "prompt_ids", "token_ids"} {
			if bytes.Contains(body, []byte(secret)) {
				t.Errorf("stream %v: %s is in %s", stream, secret, body)
			}
		}
	}
}

// blocking accepts a call and waits for release before it answers.
func blocking(release <-chan struct{}) func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
	return func(ctx context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		if err := frames(schema.Frame{Kind: schema.FrameAccept, Gen: "g1"}); err != nil {
			return schema.Reply{}, err
		}
		select {
		case <-release:
			return Text("ok"), nil
		case <-ctx.Done():
			return schema.Reply{}, context.Cause(ctx)
		}
	}
}

func keepAlive(t *testing.T, f Fixture) {
	for _, stream := range []bool{false, true} {
		release := make(chan struct{})
		h := New(t, f, &Model{Answer: blocking(release)}, schema.GateOptions{})
		res, err := h.Post(t.Context(), f.Body("hi", stream))
		if err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(res.Body)
		var seen []byte
		want := " "
		if stream {
			want = f.KeepAlive
		}
		for strings.Count(string(seen), want) < 3 { // three keep-alives before the answer
			b, err := r.ReadByte()
			if err != nil {
				t.Fatalf("stream %v: %v after %q", stream, err, seen)
			}
			seen = append(seen, b)
		}
		close(release)
		rest, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if text, _ := f.Read(t, append(seen, rest...), stream); res.StatusCode != 200 || text != "ok" {
			t.Errorf("stream %v: %d %q", stream, res.StatusCode, text)
		}
	}
}

func refuseWith(f *schema.Fault) func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
	return func(context.Context, schema.Call, func(schema.Frame) error) (schema.Reply, error) {
		return schema.Reply{}, f
	}
}

func refusals(t *testing.T, f Fixture) {
	for _, status := range []int{400, 409, 410, 413, 429, 500, 503} {
		h := New(t, f, &Model{Answer: refuseWith(&schema.Fault{Code: "x", Message: "internal: 10.0.0.7 broke", Status: status})}, schema.GateOptions{})
		got, body := h.Ask(f.Body("hi", true))
		if got != status || bytes.Contains(body, []byte("10.0.0.7")) {
			t.Errorf("%d: got %d %s", status, got, body)
		}
	}
	h := New(t, f, &Model{Answer: refuseWith(&schema.Fault{Code: "x", Message: "internal", AgentMessage: "read me", Status: 400})}, schema.GateOptions{})
	if _, body := h.Ask(f.Body("hi", false)); !bytes.Contains(body, []byte("read me")) {
		t.Errorf("the text for the agent is not in %s", body)
	}
}

func lateRefusal(t *testing.T, f Fixture) {
	for _, stream := range []bool{false, true} {
		release := make(chan struct{})
		h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
			<-release
			return schema.Reply{}, &schema.Fault{Code: "x", Message: "no", Status: 500}
		}}, schema.GateOptions{})
		res, err := h.Post(t.Context(), f.Body("hi", stream)) // returns with the headers, after 100 ms
		if err != nil {
			t.Fatal(err)
		}
		close(release)
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || !bytes.Contains(body, []byte("error")) {
			t.Errorf("stream %v: %d %s", stream, res.StatusCode, body)
		}
	}
}

func keys(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{})
	for _, header := range []string{"Authorization: Bearer wrong", "Authorization: ", "Authorization: Bearer " + h.Session.Key() + "x"} {
		if status, _ := h.Ask(f.Body("hi", false), header); status != 401 {
			t.Errorf("%q: %d", header, status)
		}
	}
	for _, header := range []string{"X-Api-Key: ", "X-Goog-Api-Key: "} {
		if status, _ := h.Ask(f.Body("hi", false), "Authorization: ", header+h.Session.Key()); status != 200 {
			t.Errorf("%q with the key: %d", header, status)
		}
	}
	h.Session.Close()
	if status, _ := h.Ask(f.Body("hi", false)); status != 503 {
		t.Errorf("after the end: %d", status)
	}
	if n := h.Model.Calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func models(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{})
	get := func(path, key string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	_, path, _ := strings.Cut(f.Dialect.ModelsRoutes()[0], " ")
	if status, body := get(path, h.Session.Key()); status != 200 || !strings.Contains(body, "policy") {
		t.Errorf("models: %d %s", status, body)
	}
	if status, _ := get(path, "wrong"); status != 401 {
		t.Errorf("models with a wrong key: %d", status)
	}
	if status, _ := get("/health", ""); status != 200 {
		t.Errorf("health: %d", status)
	}
	if status, _ := get("/no/such/path", h.Session.Key()); status != 404 {
		t.Errorf("unknown path: %d", status)
	}
}

func badBodies(t *testing.T, f Fixture) {
	h := New(t, f, &Model{}, schema.GateOptions{})
	for _, body := range []string{"", "{", "[]", "null", `"x"`, f.Body("hi", false) + "x", strings.Repeat("[", 100_000)} {
		if status, answer := h.Ask(body); status != 400 || !json.Valid(answer) {
			t.Errorf("%.40q: %d %s", body, status, answer)
		}
	}
	if status, answer := h.Ask(f.Body(strings.Repeat("x", 20<<20), false)); status != 413 || !bytes.Contains(answer, []byte("16777216")) {
		t.Errorf("20 MB: %d %.200s", status, answer)
	}
	for _, poison := range []string{strings.Repeat("9", 5000), strings.Repeat("[", 1500) + strings.Repeat("]", 1500), strings.Repeat(`{"a":`, 1500) + "1" + strings.Repeat("}", 1500), "1e999"} {
		for _, body := range []string{strings.TrimSuffix(f.Body("hi", false), "}") + `,"user":` + poison + "}", strings.Replace(f.Body("hi", false), `"hi"`, `"hi","user":`+poison, 1)} {
			if status, answer := h.Ask(body); status != 400 || !json.Valid(answer) {
				t.Errorf("%.80s: %d %s", body, status, answer)
			}
		}
	}
	if n := h.Model.Calls.Load(); n != 0 {
		t.Errorf("%d calls were made of bad bodies", n)
	}
}
