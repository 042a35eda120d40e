package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// vllm is vLLM with a tiny random model, in a process of its own.
type vllm struct {
	url     string
	dir     string
	context int
	port    int
	cmd     *exec.Cmd
	log     harness.Buffer
	done    chan struct{}
}

// engineDir is the folder into which e2e/engines/install.sh installed vLLM.
func engineDir(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("TURNGATE_ENGINES")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(user, "turngate", "engines")
	}
	found, err := filepath.Glob(filepath.Join(cache, "vllm-*", "tiny", "complete"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no vLLM in %s: `make engines` installs it", cache)
	}
	testenv.Need(t, "vllm", err)
	return filepath.Dir(filepath.Dir(found[len(found)-1]))
}

// startVLLM starts vLLM with this number of tokens of context. It ends with the
// test.
func startVLLM(t *testing.T, tokens int) *vllm {
	t.Helper()
	e := &vllm{dir: engineDir(t), context: tokens, port: testenv.FreePort(t)}
	e.url = "http://127.0.0.1:" + strconv.Itoa(e.port)
	e.start(t)
	t.Cleanup(func() {
		e.kill()
		if t.Failed() {
			t.Logf("the engine: %s", clip(e.log.String()))
		}
	})
	return e
}

func (e *vllm) start(t *testing.T) {
	t.Helper()
	e.cmd = exec.Command(filepath.Join(e.dir, "venv/bin/vllm"), "serve", filepath.Join(e.dir, "tiny"), "--served-model-name", "tiny",
		"--host", "127.0.0.1", "--port", strconv.Itoa(e.port), "--enforce-eager", "--dtype", "float32", "--max-model-len", strconv.Itoa(e.context), "--max-num-seqs", "8",
		"--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
	e.cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_SERVER_DEV_MODE=1", "PATH="+filepath.Join(e.dir, "venv/bin")+":"+os.Getenv("PATH"))
	e.cmd.Stdout, e.cmd.Stderr = &e.log, &e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it has children
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	e.done = done
	go func() {
		_ = e.cmd.Wait()
		close(done)
	}()
	began := time.Now()
	harness.Eventually(t, "an engine that is ready", 10*time.Minute, func() bool {
		select {
		case <-done:
			t.Fatalf("the engine ended: %s", clip(e.log.String()))
		default:
		}
		return e.warm(t.Context())
	})
	t.Logf("vLLM with %d tokens of context took %s to start", e.context, time.Since(began).Round(time.Second))
}

// warm reports whether the engine answers. Its first answer takes half a minute.
func (e *vllm) warm(ctx context.Context) bool {
	body := `{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// kill ends the engine and its children at once.
func (e *vllm) kill() {
	_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
	<-e.done
}

// watched is an engine behind a proxy that records requests and answers.
type watched struct {
	url string

	mu    sync.Mutex
	asked []completionOf
}

// completionOf is one answer of an engine to one call.
type completionOf struct {
	call   string // its key
	status int
	body   []byte
	whole  bool
}

// watch puts a proxy before the engine.
func watch(t *testing.T, to string) *watched {
	t.Helper()
	w := &watched{}
	srv := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) { w.pass(out, r, to) }))
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

func (w *watched) pass(out http.ResponseWriter, r *http.Request, to string) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, to+r.URL.Path, r.Body)
	if err != nil {
		out.WriteHeader(http.StatusBadGateway)
		return
	}
	req.Header = r.Header.Clone()
	c := completionOf{call: r.Header.Get("X-Request-Id"), status: http.StatusBadGateway}
	defer func() {
		if r.Method == http.MethodPost {
			w.mu.Lock()
			w.asked = append(w.asked, c)
			w.mu.Unlock()
		}
	}()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		out.WriteHeader(http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	c.status = res.StatusCode
	out.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	out.WriteHeader(res.StatusCode)
	buf := make([]byte, 32<<10)
	for {
		n, err := res.Body.Read(buf)
		c.body = append(c.body, buf[:n]...)
		if _, failed := out.Write(buf[:n]); failed != nil {
			return
		}
		_ = http.NewResponseController(out).Flush()
		if err != nil {
			c.whole = err == io.EOF
			if !c.whole { // the connection breaks for the client, too
				panic(http.ErrAbortHandler)
			}
			return
		}
	}
}

// of returns the answers to one call, in order.
func (w *watched) of(call string) []completionOf {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []completionOf
	for _, c := range w.asked {
		if c.call == call {
			all = append(all, c)
		}
	}
	return all
}

// saidIDs returns the ids and log-probs in an engine's answer, whole or streamed.
func saidIDs(t *testing.T, body []byte) (prompt, ids []int32, logprobs []float32) {
	t.Helper()
	pieces := [][]byte{body}
	if bytes.HasPrefix(body, []byte("data:")) {
		pieces = nil
		for line := range bytes.SplitSeq(body, []byte("\n")) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && string(data) != "[DONE]" {
				pieces = append(pieces, data)
			}
		}
	}
	for _, piece := range pieces {
		var said struct {
			Prompt  []int32 `json:"prompt_token_ids"`
			Choices []struct {
				IDs      []int32 `json:"token_ids"`
				Logprobs *struct {
					Content []struct{ Logprob float32 }
				}
			}
		}
		if err := json.Unmarshal(piece, &said); err != nil {
			t.Fatalf("%v: %s", err, piece)
		}
		prompt = append(prompt, said.Prompt...)
		for _, c := range said.Choices {
			ids = append(ids, c.IDs...)
			if c.Logprobs != nil {
				for _, l := range c.Logprobs.Content {
					logprobs = append(logprobs, l.Logprob)
				}
			}
		}
	}
	return prompt, ids, logprobs
}
