package mini_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/mini"
)

// model starts a server that gives the answers in their order and records the
// requests.
func model(t *testing.T, answers ...string) (url string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Authorization") != "Bearer k" || r.URL.Path != "/v1/chat/completions" {
			t.Errorf("%v %s %v", err, r.URL, r.Header)
		}
		n := len(*asked)
		*asked = append(*asked, string(body))
		if n >= len(answers) {
			n = len(answers) - 1
		}
		if answers[n] == "503" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"message":"busy"}}`)
			return
		}
		fmt.Fprintf(w, "   \n"+`{"choices":[{"message":%s}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, answers[n]) // white space in front is a keep-alive
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1", asked
}

func bash(command string) string {
	arguments, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		panic(err) // strings always encode
	}
	quoted, err := json.Marshal(string(arguments))
	if err != nil {
		panic(err)
	}
	return `{"role":"assistant","content":null,"x":[1.0],"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":` + string(quoted) + `}}]}`
}

func TestItLoopsUntilTheModelIsDone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	url, asked := model(t, bash("echo hi > "+file+"; echo out; echo err >&2; exit 3"), "503", bash("sleep 60"), `{"role":"assistant","content":"Done."}`)
	var events bytes.Buffer
	err := mini.Run(t.Context(), mini.Config{BaseURL: url, Key: "k", Model: "m", Instruction: "do $(it)", Events: &events, ToolTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "hi\n" {
		t.Errorf("got %q, %v", data, err)
	}
	last := (*asked)[len(*asked)-1]
	for _, want := range []string{`"x":[1.0]`, `out\nerr\n`, `exit status 3`, `do $(it)`, `signal: killed`} {
		if !strings.Contains(last, want) {
			t.Errorf("%s is not in %s", want, last)
		}
	}
	if lines := strings.Count(events.String(), "\n"); lines != 5 || !strings.Contains(events.String(), `"text":"Done."`) {
		t.Errorf("%d events: %s", lines, events.String())
	}
}

func TestItEndsWithAnErrorWhenItCannotGoOn(t *testing.T) {
	url, _ := model(t, bash("true"))
	for name, c := range map[string]mini.Config{
		"no instruction": {Instruction: " \n"},
		"turns used up":  {Instruction: "x", MaxTurns: 2},
	} {
		c.BaseURL, c.Key, c.Events = url, "k", io.Discard
		if err := mini.Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestBadToolCallsAreReportedToTheModel(t *testing.T) {
	url, asked := model(t,
		`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"python","arguments":"{}"}},{"id":"b","function":{"name":"bash","arguments":"{\"comm"}}]}`,
		`{"role":"assistant","content":"ok"}`)
	if err := mini.Run(t.Context(), mini.Config{BaseURL: url, Key: "k", Instruction: "x", Events: io.Discard}); err != nil {
		t.Fatal(err)
	}
	if last := (*asked)[1]; !strings.Contains(last, "there is no tool") || !strings.Contains(last, "the arguments must be") {
		t.Errorf("got %s", last)
	}
}
