package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// consoleClient asks a console as its pages do.
type consoleClient struct {
	*http.Client
	base, token string
}

func openConsole(t *testing.T, link string) *consoleClient {
	t.Helper()
	jar, err := cookiejar.New(nil)
	harness.Must(t, err)
	c := &consoleClient{Client: &http.Client{Jar: jar, Transport: &http.Transport{}}}
	t.Cleanup(c.CloseIdleConnections)
	c.base, _, _ = strings.Cut(link, "/?")
	if code, text := c.ask(t, http.MethodGet, strings.TrimPrefix(link, c.base), ""); code != http.StatusOK {
		t.Fatalf("got %d %s", code, text)
	}
	var rights struct{ Token string }
	_, text := c.ask(t, http.MethodGet, "/api/rights", "")
	harness.Must(t, json.Unmarshal([]byte(text), &rights))
	c.token = rights.Token
	return c
}

func (c *consoleClient) ask(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, c.base+path, strings.NewReader(body))
	harness.Must(t, err)
	q.Header.Set("Origin", c.base)
	q.Header.Set("Turngate-Token", c.token)
	a, err := c.Do(q)
	harness.Must(t, err)
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	harness.Must(t, err)
	return a.StatusCode, string(text)
}

// run runs a rollout and returns its path.
func (c *consoleClient) run(t *testing.T, answerer string) string {
	t.Helper()
	order, err := json.Marshal(map[string]string{"folder": filepath.Join(testenv.Root(t), "examples/tasks/hello"), "agent": "mini", "sandbox": "local", "answerer": answerer})
	harness.Must(t, err)
	code, text := c.ask(t, http.MethodPost, "/api/new", string(order))
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusOK || !strings.HasPrefix(made.ID, "local-") {
		t.Fatalf("%s: got %d %s", answerer, code, text)
	}
	return "/api/rollouts/" + made.ID
}

// awaitReward waits for a rollout with an agent that did the task in two calls.
func (c *consoleClient) awaitReward(t *testing.T, path string) {
	t.Helper()
	var d struct {
		Status string
		Reward *float64
		Fault  string
		Calls  []json.RawMessage
	}
	harness.Eventually(t, "a result", 5*time.Minute, func() bool {
		_, text := c.ask(t, http.MethodGet, path, "")
		harness.Must(t, json.Unmarshal([]byte(text), &d))
		return d.Status == "done" || d.Status == "failed"
	})
	if d.Status != "done" || d.Fault != "" || d.Reward == nil || *d.Reward != 1 || len(d.Calls) != 2 {
		t.Errorf("%s: got %+v", path, d)
	}
}

// asked waits until a person is asked for the answer to a call, and returns the name of the
// generation.
func (c *consoleClient) asked(t *testing.T, path string, call int) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.base+path+"/live", nil)
	harness.Must(t, err)
	a, err := c.Do(q)
	harness.Must(t, err)
	defer a.Body.Close()
	lines := bufio.NewReader(a.Body)
	for name := ""; ; {
		line, err := lines.ReadString('\n')
		harness.Must(t, err)
		if event, ok := strings.CutPrefix(line, "event: "); ok {
			name = strings.TrimSpace(event)
		}
		var list []struct {
			Gen    string
			Number int
			Tools  []struct{ Name string }
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || name != "asked" {
			continue
		}
		harness.Must(t, json.Unmarshal([]byte(data), &list))
		for _, question := range list {
			if question.Number == call && question.Tools[0].Name == "bash" {
				return question.Gen
			}
		}
	}
}

// With a trainer's credential the console runs rollouts that a model server, a script, a
// recording or a person answers. A console that begins after another one was killed goes on
// with its open rollout, and no call is answered twice.
func TestAConsoleOfATrainerRunsRollouts(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	state := t.TempDir()
	up := start(t, testenv.Binary(t), "up", "--state", state, "--port", "0", "--sandboxes", "local", "--console", "off")
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
		return strings.Contains(up.err.String(), "are ready") && strings.Contains(up.out.String(), "turngate trainer add")
	})
	url := regexp.MustCompile(`nats://[0-9.:]+`).FindString(up.out.String())
	begin := func() (*consoleClient, *process) {
		p := start(t, testenv.Binary(t), "console", "--nats", url, "--creds", filepath.Join(state, "creds", "trainer-local.nk"))
		harness.Eventually(t, "a console", 5*time.Minute, func() bool { return strings.HasSuffix(p.out.String(), "\n") })
		return openConsole(t, strings.TrimSpace(p.out.String())), p
	}
	c, first := begin()
	engine := httptest.NewServer(helloEngine(t))
	defer engine.Close()
	for answerer, want := range map[string]string{"nobody": "want replay:FILE", "replay:" + t.TempDir(): "replay"} {
		if code, text := c.ask(t, http.MethodPost, "/api/new", fmt.Sprintf(`{"instruction":"x","agent":"mini","sandbox":"local","answerer":%q}`, answerer)); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: got %d %s", answerer, code, text)
		}
	}
	answered := c.run(t, "upstream:"+engine.URL)
	c.awaitReward(t, answered)
	path := c.run(t, "replay:"+filepath.Join(testenv.Root(t), "examples/tasks/hello/replay.yaml"))
	c.awaitReward(t, path)
	code, transcript := c.ask(t, http.MethodGet, answered+"/files/transcript.jsonl.zst", "")
	if code != http.StatusOK {
		t.Fatalf("got %d %s", code, transcript)
	}
	file := filepath.Join(t.TempDir(), "transcript.jsonl.zst")
	harness.Must(t, os.WriteFile(file, []byte(transcript), 0o600))
	path = c.run(t, "transcript:"+file)
	c.awaitReward(t, path)

	path = c.run(t, "")
	gen := c.asked(t, path, 1)
	harness.Must(t, first.cmd.Process.Kill())
	<-first.done
	c, _ = begin()
	const command = `"tools":[{"tool":0,"arguments":{"command":"echo 'Hello, world!' > hello.txt"}}]}`
	again := c.asked(t, path, 1)
	if again == gen {
		t.Error("the second console has the generation of the first one")
	}
	for try, want := range []int{http.StatusOK, http.StatusConflict} {
		if code, text := c.ask(t, http.MethodPost, path+"/calls/1/answer", fmt.Sprintf(`{"gen":%q,%s`, again, command)); code != want {
			t.Errorf("try %d: got %d %s", try, code, text)
		}
	}
	gen = c.asked(t, path, 2)
	if code, text := c.ask(t, http.MethodPost, path+"/calls/2/answer", fmt.Sprintf(`{"gen":%q,"text":"Done."}`, gen)); code != http.StatusOK {
		t.Fatalf("got %d %s", code, text)
	}
	c.awaitReward(t, path)
}
