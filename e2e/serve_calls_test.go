package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// frontClient is a trainer that knows a front alone.
type frontClient struct {
	t   *testing.T
	url string
}

func (c *frontClient) do(method, path string, body any, into any) {
	c.t.Helper()
	data, err := json.Marshal(body)
	harness.Must(c.t, err)
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, bytes.NewReader(data))
	harness.Must(c.t, err)
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	harness.Must(c.t, err)
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	harness.Must(c.t, err)
	if res.StatusCode >= 400 {
		c.t.Fatalf("%s %s: %s", method, path, got)
	}
	harness.Must(c.t, json.Unmarshal(got, into))
}

func (c *frontClient) calls() *websocket.Conn {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(c.url, "http", "ws", 1)+"/v1/calls?take_over=true", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer secret"}}}) //nolint:bodyclose // the library closes it
	harness.Must(c.t, err)
	conn.SetReadLimit(64 << 20)
	c.t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// TestAFrontIsKilledInACall: the front is killed with SIGKILL while a client of its
// WebSocket answers a call. The rollout ends in its first attempt, and the client generates
// once for each call.
func TestAFrontIsKilledInACall(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "local", "mini")
	b.worker(t, "", "--sandboxes", "local")
	sum := sha256.Sum256([]byte("secret"))
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	harness.Must(t, os.WriteFile(tokens, fmt.Appendf(nil, "- {trainer: local, sha256: %s, creds: %q}\n", hex.EncodeToString(sum[:]), b.nats.TrainerCreds("local")), 0o600))
	port := testenv.FreePort(t)
	front := func() *process {
		testenv.AwaitFree(t, port)
		p := start(t, b.binary, "serve", "--nats", b.nats.URL(), "--tokens", tokens, "--listen", "127.0.0.1:"+strconv.Itoa(port))
		harness.Eventually(t, "a front", 5*time.Minute, func() bool { return strings.Contains(p.err.String(), "serving trainers") })
		return p
	}
	first := front()
	c := &frontClient{t, "http://127.0.0.1:" + strconv.Itoa(port)}
	q := schema.Request{Task: schema.Task{Name: "t", Instruction: "say done"}, Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "local"}}
	var out struct{ IDs []schema.ID }
	c.do("POST", "/v1/groups", map[string]any{"group": "g", "n": 2, "request": q}, &out)

	type frame struct {
		Type, Key, Gen string
		Call           *schema.Call
	}
	generated := map[string]int{}
	answers := map[string]string{}
	conn := c.calls()
	again := false
	read := func() (f frame) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		_, data, err := conn.Read(ctx)
		harness.Must(t, err)
		harness.Must(t, json.Unmarshal(data, &f))
		return f
	}
	for ended := 0; ended < len(out.IDs); {
		f := read()
		if f.Type != "call" {
			if f.Type != "answered" && f.Type != "over" {
				t.Fatalf("a frame of type %s about %s", f.Type, f.Key)
			}
			if f.Type == "answered" {
				ended++ // a rollout of mini with one text has one call
			}
			continue
		}
		if answers[f.Key] == "" { // it is new to this client
			generated[f.Key]++
			answers[f.Key] = `"reply":{"message":{"role":"assistant","content":"done"},"finish_reason":"stop","prompt_ids":[1],"completion_ids":[2],"logprobs":[-1]}}`
		}
		if !again {
			again = true
			harness.Must(t, first.cmd.Process.Kill())
			<-first.done
			conn.CloseNow()
			front()
			conn = c.calls()
			continue
		}
		harness.Must(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"answer","key":"`+f.Key+`","gen":"`+f.Gen+`",`+answers[f.Key])))
	}
	ended := map[schema.ID]bool{}
	after := ""
	for len(ended) < len(out.IDs) {
		var got struct {
			Results []schema.Result
			Next    string
		}
		c.do("GET", "/v1/results?wait=60&after="+after, nil, &got)
		after = got.Next
		for i := range got.Results {
			r := &got.Results[i]
			ended[r.ID] = true
			if r.Status != schema.StatusDone || r.Attempt != 1 || len(r.Committed) != 1 {
				t.Errorf("the result: %+v", r)
			}
		}
	}
	for key, n := range generated {
		if n != 1 {
			t.Errorf("%s was generated %d times", key, n)
		}
	}
	if len(generated) != len(out.IDs) {
		t.Errorf("generated: %v", generated)
	}
}
