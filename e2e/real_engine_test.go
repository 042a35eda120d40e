package e2e_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/upstream/upstreamtest"
	"github.com/turngate/turngate/schema"
)

var update = flag.Bool("update", false, "write the recordings of the engine's answers anew")

// TestARealEngine tests vLLM with contexts of three lengths: `make engines`.
func TestARealEngine(t *testing.T) {
	testenv.Slow(t)
	for _, tokens := range []int{upstreamtest.Context, 16 << 10, 32 << 10} {
		t.Run(strconv.Itoa(tokens), func(t *testing.T) {
			e := startVLLM(t, tokens)
			b := newBench(t)
			if tokens == upstreamtest.Context {
				t.Run("recordings", func(t *testing.T) { recordingsAreTrue(t, e) })
				t.Run("python", func(t *testing.T) { pythonLikes(t, e) })
				t.Run("doctor", func(t *testing.T) { doctorLikes(t, b, e) })
				t.Run("dies", func(t *testing.T) { engineDies(t, b, e.url, e.kill, func() { e.start(t) }) })
			}
			for _, agent := range []string{"opencode", "pi", "codex", "claude-code", "gemini-cli"} {
				for _, mode := range []string{"trainer/pass", "trainer/buffer", "proxy/pass", "proxy/buffer"} {
					if tokens == upstreamtest.Context && mode != "trainer/buffer" { // each call overflows
						continue
					}
					t.Run(agent+"/"+mode, func(t *testing.T) { agentOnEngine(t, b, e.url, agent, mode) })
				}
			}
		})
	}
}

// recordingsAreTrue checks that the engine still gives the answers that are
// recorded for the tests of package upstream.
func recordingsAreTrue(t *testing.T, e *vllm) {
	upstreamtest.Run(t, e.url, func(t *testing.T, name string) *upstreamtest.Tape {
		return upstreamtest.Live(t, filepath.Join(testenv.Root(t), "internal", "upstream", "testdata", "recordings", "vllm", name+".json"), *update)
	})
}

// pythonLikes runs the tests of the Python client's Upstream with the engine, and
// with a second version of its weights.
func pythonLikes(t *testing.T, e *vllm) {
	python, err := findPython()
	testenv.Need(t, "python", err)
	c := newPythonClient(t, python, 20*time.Minute)
	c.install(t, "[test]")
	weights := filepath.Join(t.TempDir(), "weights")
	if out, err := exec.Command(filepath.Join(e.dir, "venv/bin/python"), filepath.Join(testenv.Root(t), "e2e/engines/tiny.py"), weights, "1").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.env = append(c.env, "TURNGATE_ENGINE="+e.url, "TURNGATE_ENGINE_WEIGHTS="+weights)
	if err := c.run(c.in("python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/engines"); err != nil {
		t.Error(err)
	}
}

func doctorLikes(t *testing.T, b *bench, e *vllm) {
	p := start(t, b.binary, "doctor", "--upstream", e.url)
	code := p.wait(t, 10*time.Minute)
	said := p.out.String() + p.err.String()
	t.Log(said)
	for _, want := range []string{"serves tiny, 2048 tokens of context", "a log-prob each", "of the distribution that is sampled", "come as tool_calls", "chunks, with ids"} {
		if !strings.Contains(said, want) {
			t.Errorf("exit status %d, no %q", code, want)
		}
	}
}

// agentOnEngine runs an agent on a random policy. Its answers make no sense, so
// the agent may end in any way; but each of its calls must be answered, and the
// training data must be that of the engine.
func agentOnEngine(t *testing.T, b *bench, url, agent, mode string) {
	b.need(t, "local", agent)
	w := watch(t, url)
	by, stream, _ := strings.Cut(mode, "/")
	args := []string{"--agent", agent, "--stream", stream, "--sandbox", "local"}
	flags := []string{"--sandboxes", "local"}
	if by == "trainer" {
		args = append(args, "--trainer", "upstream:"+w.url)
	} else {
		file := filepath.Join(t.TempDir(), "upstreams.yaml")
		if err := os.WriteFile(file, []byte("lab:\n  url: "+w.url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args, flags = append(args, "--mode", "transparent_proxy", "--model", "lab"), append(flags, "--upstreams", file)
	}
	task := copyTask(t, "examples/tasks/hello", nil)
	if err := os.Remove(filepath.Join(task, "replay.yaml")); err != nil {
		t.Fatal(err)
	}
	b.worker(t, "", flags...)
	p := b.run(t, append(args, task)...)
	p.wait(t, 8*time.Minute)
	res := results(t, p)[0]
	if res.Status != schema.StatusDone {
		t.Fatalf("got %+v", res)
	}
	calls := transcript(t, b, res)
	answered, overflows := 0, 0
	for _, c := range calls {
		key := fmt.Sprintf("%s/%d/%d", res.ID, res.Attempt, c.Call)
		asked := w.of(key)
		switch {
		case len(asked) == 0 || len(asked) > 3:
			t.Errorf("call %d was asked %d times", c.Call, len(asked))
		case c.Reply != nil:
			answered++
			last := asked[len(asked)-1]
			prompt, ids, logprobs := saidIDs(t, last.body)
			if len(ids) == 0 || !reflect.DeepEqual(c.Reply.PromptIDs.Unpack(), prompt) || !reflect.DeepEqual(c.Reply.CompletionIDs.Unpack(), ids) || !reflect.DeepEqual(c.Reply.Logprobs.Unpack(), logprobs) {
				t.Errorf("call %d: ids or log-probs are not the engine's own: %d and %d, %d and %d", c.Call, c.Reply.CompletionIDs.Len(), len(ids), c.Reply.Logprobs.Len(), len(logprobs))
			}
		case c.Fault != nil && c.Fault.Code == schema.CodeContext:
			overflows++
			if len(asked) != 1 || asked[0].status != http.StatusBadRequest {
				t.Errorf("call %d: an overflow was asked %d times", c.Call, len(asked))
			}
		case c.Fault == nil || !strings.Contains(c.Fault.Message, "ended") && !strings.Contains(c.Fault.Message, "gave the call up"):
			t.Errorf("call %d: %+v", c.Call, c.Fault)
		}
	}
	if answered+overflows == 0 {
		t.Errorf("no call was answered: %+v", res)
	}
	t.Logf("%d calls: %d answered, %d said to be too long; edits %q; fault %v", len(calls), answered, overflows, res.Edits, res.Fault)
}

// ended is the transcript line for the end of a call.
type endedCall struct {
	Call  int           `json:"call"`
	Reply *schema.Reply `json:"reply"`
	Fault *schema.Fault `json:"fault"`
}

// transcript reads the ends of the calls from the transcript of a result.
func transcript(t *testing.T, b *bench, res schema.Result) []endedCall {
	t.Helper()
	var all []endedCall
	for _, a := range res.Artifacts {
		if a.Name != res.Transcript {
			continue
		}
		data, err := b.nats.Trainer(t, "local").Objects.Artifact(t.Context(), "local", a.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		zip, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		defer zip.Close()
		for d := json.NewDecoder(zip); d.More(); {
			var line endedCall
			if err := d.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Reply != nil || line.Fault != nil {
				all = append(all, line)
			}
		}
	}
	return all
}

// asksForty is an agent that makes 40 calls, one after the other, and does its
// task only if each is answered.
const asksForty = `
base=${OPENAI_BASE_URL#http://}; server=${base%%/*}; server=/dev/tcp/${server%:*}/${server#*:}
for n in $(seq 40); do
	body='{"model":"m","max_tokens":60,"messages":[{"role":"user","content":"call '$n'"}]}'
	exec 3<>$server
	printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
		"${base#*/}" "$OPENAI_API_KEY" ${#body} "$body" >&3
	read -r protocol status rest <&3
	cat <&3 >/dev/null
	[ "$status" = 200 ] || exit 1
done
echo 'Hello, world!' > hello.txt
`

// engineDies checks that calls wait for an engine that was killed, that the
// submitter sees the wait at once, and that the rollout goes on when the engine is
// back.
func engineDies(t *testing.T, b *bench, url string, kill, again func()) {
	w := watch(t, url)
	task := copyTask(t, "examples/tasks/hello", nil)
	b.worker(t, "", "--sandboxes", "local")
	p := b.run(t, "--agent", "command", "--sandbox", "local", "--max-repeats", "100", "--trainer", "upstream:"+w.url, task, "--", "bash", "-c", asksForty)
	harness.Eventually(t, "three answers", 5*time.Minute, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.asked) >= 3
	})
	kill()
	harness.Eventually(t, "the wait on the submitter's screen", 5*time.Minute, func() bool { return strings.Contains(p.err.String(), "waits for") })
	again()
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	res := results(t, p)[0]
	if res.Reward == nil || *res.Reward != 1 || res.Calls[schema.TagAgent].Count != 40 || len(res.Committed) != 40 {
		t.Errorf("got %+v", res)
	}
	for _, c := range transcript(t, b, res) {
		if c.Reply == nil || c.Reply.CompletionIDs.Len() == 0 || c.Reply.CompletionIDs.Len() != c.Reply.Logprobs.Len() {
			t.Errorf("call %d: %+v", c.Call, c.Fault)
		}
	}
}
