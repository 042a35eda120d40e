package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// labEngine is an OpenAI-compatible server that follows a script. It refuses one
// parameter, as hosted servers do, and fails its first call.
type labEngine struct {
	url string

	mu   sync.Mutex
	seen []map[string]json.RawMessage
	keys map[string]bool
}

func startEngine(t *testing.T, script string) *labEngine {
	t.Helper()
	s, err := replay.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	e := &labEngine{keys: map[string]bool{}}
	failed := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.seen, e.keys[r.Header.Get("Authorization")] = append(e.seen, body), true
		if !failed {
			failed = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if body["max_tokens"] != nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"Unsupported parameter: 'max_tokens'"}}`)
			return
		}
		c := &schema.Call{Tools: body["tools"]}
		if err := json.Unmarshal(body["messages"], &c.Messages); err != nil {
			t.Error(err)
		}
		reply, err := s.Answer(r.Context(), c)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, err)
			return
		}
		fmt.Fprintf(w, `{"prompt_token_ids":[1,2,3],"choices":[{"index":0,"message":%s,"finish_reason":%q,"token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-0.25}]}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`,
			reply.Message, reply.FinishReason)
	}))
	t.Cleanup(srv.Close)
	e.url = srv.URL
	return e
}

// file writes a worker's configuration that names the engine.
func (e *labEngine) file(t *testing.T, more string) string {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	path := filepath.Join(dir, "upstreams.yaml")
	for name, text := range map[string]string{key: "sk-secret-of-the-engine\n", path: fmt.Sprintf("lab:\n  url: %s\n  key_file: %s\n  model: served\n%s", e.url, key, more)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

const engineScript = "steps:\n- run: \"echo 'Hello, world!' > hello.txt\"\n- text: Done.\n"

// TestTheWorkerCallsAnUpstreamItself checks that the worker records the same data as
// for answers of a trainer.
func TestTheWorkerCallsAnUpstreamItself(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	e := startEngine(t, engineScript)
	file := e.file(t, "  max_tokens: 777\n  top_logprobs: 3\n  trainers: [local]\n")
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	p := start(t, b.binary, "run", "-o", "json", "--mode", "transparent_proxy", "--model", "lab", "--upstreams", file, task)
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, p.err)
	}
	r := one(t, results(t, p), 1, 2)
	if !slices.Equal(r.Edits, []string{"max_tokens"}) || r.Calls[schema.TagAgent].CompletionTokens != 4 {
		t.Errorf("edits %q, calls %+v", r.Edits, r.Calls)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	last := e.seen[len(e.seen)-1]
	if string(last["model"]) != `"served"` || string(last["max_completion_tokens"]) != "777" || string(last["return_token_ids"]) != "true" || len(e.keys) != 1 || !e.keys["Bearer sk-secret-of-the-engine"] {
		t.Errorf("the engine was asked with %v, keys %v", last, e.keys)
	}
	if strings.Contains(p.out.String()+p.err.String(), "sk-secret") {
		t.Error("the engine's key is in the output")
	}
	other := start(t, b.binary, "run", "-o", "json", "--name", "other", "--mode", "transparent_proxy", "--model", "lab", "--upstreams", file, task)
	if code := other.wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("another trainer: exit status %d", code)
	}
	if f := results(t, other)[0].Fault; f == nil || f.Who != schema.WhoUser || !strings.Contains(f.Message, "model.upstream") {
		t.Errorf("another trainer: %+v", f)
	}
}

// readsTwoPieces is an agent that makes a second call after it has read the first
// piece of an answer, and solves its task only if the second piece arrives
// separately.
const readsTwoPieces = `
base=${OPENAI_BASE_URL#http://}; server=${base%%/*}; server=/dev/tcp/${server%:*}/${server#*:}
request() {
	printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
		"${base#*/}" "$OPENAI_API_KEY" ${#1} "$1"
}
exec 3<>$server
request '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}' >&3
while read -r line <&3; do
	case $line in
	*first*) exec 4<>$server; request '{"model":"m","messages":[{"role":"user","content":"go on"}]}' >&4; cat <&4;;
	*second*) echo 'Hello, world!' > hello.txt;;
	esac
done
`

// TestAnUpstreamsStreamReachesTheAgent checks that the agent gets a stream piece
// by piece with gate.stream pass, and in one piece with buffer.
func TestAnUpstreamsStreamReachesTheAgent(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	goOn := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"data":[{"id":"served"}]}`)
			return
		}
		var body struct {
			Stream   bool
			Messages []struct{ Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Messages) != 1 {
			t.Errorf("%+v: %v", body, err)
			return
		}
		if !body.Stream {
			if body.Messages[0].Content == "go on" {
				goOn <- struct{}{}
			}
			fmt.Fprint(w, `{"prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":"first second"},"finish_reason":"stop","token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-0.25}]}}],"usage":{"prompt_tokens":2,"completion_tokens":2}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		select {
		case <-goOn: // of the other run
		default:
		}
		fmt.Fprint(w, `data: {"prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"role":"assistant","content":"first "},"token_ids":[7],"logprobs":{"content":[{"logprob":-0.5}]}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-goOn: // the agent has the first piece
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"second"},"token_ids":[8],"logprobs":{"content":[{"logprob":-0.25}]},"finish_reason":"stop"}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(srv.Close)
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for stream, want := range map[string]float64{schema.StreamPass: 1, schema.StreamBuffer: 0} {
		p := start(t, b.binary, "run", "-o", "json", "--trainer", "upstream:"+srv.URL, "--stream", stream, "--agent", "command", task, "--", "bash", "-c", readsTwoPieces)
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d: %s", stream, code, p.err)
		}
		r := results(t, p)[0]
		if r.Reward == nil || *r.Reward != want || r.Calls[schema.TagAgent].CompletionTokens != 4 {
			t.Errorf("%s: reward %v, calls %+v; want %v and 4 tokens", stream, r.Reward, r.Calls, want)
		}
	}
}
