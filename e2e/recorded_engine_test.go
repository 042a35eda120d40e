package e2e_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/upstream/upstreamtest"
	"github.com/turngate/turngate/schema"
)

// recordedEngine gives the recorded answers of vLLM. It counts each byte of a
// conversation as a token.
type recordedEngine struct {
	url, address          string
	models, whole, stream string
	tooLong               string
	context, port         int

	mu  sync.Mutex
	srv *http.Server
}

// startRecorded starts a recordedEngine with this number of tokens of context. It
// ends with the test.
func startRecorded(t *testing.T, tokens int) *recordedEngine {
	t.Helper()
	e := &recordedEngine{port: testenv.FreePort(t), context: tokens}
	e.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(e.port))
	e.url = "http://" + e.address
	e.models = strings.Replace(recorded(t, "whole", http.MethodGet, http.StatusOK), strconv.Itoa(upstreamtest.Context), strconv.Itoa(tokens), 1)
	e.whole = recorded(t, "whole", http.MethodPost, http.StatusOK)
	e.stream = recorded(t, "stream", http.MethodPost, http.StatusOK)
	e.tooLong = recorded(t, "prompt-above-the-context", http.MethodPost, http.StatusBadRequest)
	e.start(t)
	t.Cleanup(e.kill)
	return e
}

// recorded returns the first recorded answer of a case to a request with this
// method.
func recorded(t *testing.T, name, method string, status int) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), "internal", "upstream", "testdata", "recordings", "vllm", name+".json"))
	var all []upstreamtest.Exchange
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Method == method && e.Status == status {
			return e.Body
		}
	}
	t.Fatalf("%s has no %s with status %d", name, method, status)
	return ""
}

func (e *recordedEngine) start(t *testing.T) {
	t.Helper()
	testenv.AwaitFree(t, e.port)
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	e.mu.Lock()
	e.srv = srv
	e.mu.Unlock()
	go func() { _ = srv.Serve(l) }()
}

// kill cuts all connections.
func (e *recordedEngine) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.srv.Close()
}

// ServeHTTP implements http.Handler.
func (e *recordedEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var q struct {
		Messages json.RawMessage
		Stream   bool
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodGet:
		_, _ = io.WriteString(w, e.models)
	case json.Unmarshal(body, &q) != nil || len(q.Messages) > e.context:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, e.tooLong)
	case q.Stream:
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, e.stream)
	default:
		_, _ = io.WriteString(w, e.whole)
	}
}

// TestARecordedEngine is TestARealEngine for machines without vLLM.
func TestARecordedEngine(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, tokens := range []int{upstreamtest.Context, 64 << 10} {
		t.Run(strconv.Itoa(tokens), func(t *testing.T) {
			e := startRecorded(t, tokens)
			b := newBench(t)
			for agent, mode := range map[string]string{"mini": "trainer/pass", "opencode": "trainer/pass", "pi": "trainer/buffer", "codex": "proxy/pass", "claude-code": "proxy/buffer", "gemini-cli": "trainer/pass"} {
				t.Run(agent+"/"+mode, func(t *testing.T) { agentOnEngine(t, b, e.url, agent, mode) })
			}
		})
	}
	t.Run("dies", func(t *testing.T) {
		e := startRecorded(t, upstreamtest.Context)
		engineDies(t, newBench(t), e.url, e.kill, func() { e.start(t) })
	})
}

// TestARefusedAnswerIsOnTheScreen checks that a refused answer is shown at once
// and ends the rollout, with a trainer and with a worker that asks the engine.
func TestARefusedAnswerIsOnTheScreen(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	binary := testenv.Binary(t)
	e := startRecorded(t, upstreamtest.Context)
	e.whole = `{"prompt_token_ids":[1],"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[1,2,3],"logprobs":{"content":[{"logprob":-1}]}}],"usage":{}}`
	file := filepath.Join(t.TempDir(), "upstreams.yaml")
	if err := os.WriteFile(file, []byte("lab:\n  url: "+e.url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for name, args := range map[string][]string{
		e.address: {"--trainer", "upstream:" + e.url},
		"lab":     {"--mode", "transparent_proxy", "--model", "lab", "--upstreams", file},
	} {
		p := start(t, slices.Concat([]string{binary, "run", "-o", "json", "--agent", "mini", "--sandbox", "local"}, args, []string{task})...)
		if code := p.wait(t, 10*time.Minute); code != 1 {
			t.Errorf("%s: exit status %d", name, code)
		}
		f := results(t, p)[0].Fault
		if f == nil || f.Code != schema.CodeBadAnswer || !strings.Contains(f.Message, "upstream "+name) || !strings.Contains(f.Message, "logprobs") {
			t.Errorf("%s: %+v", name, f)
		}
		if said := p.err.String(); !strings.Contains(said, "waits for") || !strings.Contains(said, "upstream "+name) {
			t.Errorf("%s: the screen says %s", name, said)
		}
	}
}
