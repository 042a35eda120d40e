package main_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestARunLooksAtItsUpstreamFirst: an upstream that can answer no call ends the command with
// status 2 and the reason, before there is a job. One that is starting does not.
func TestARunLooksAtItsUpstreamFirst(t *testing.T) {
	binary := testenv.Binary(t)
	good := task(t, map[string]string{"instruction.md": "x"})
	serve := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return "upstream:" + s.URL
	}
	file := filepath.Join(t.TempDir(), "upstreams.yaml")
	if err := os.WriteFile(file, []byte("far: {url: 'http://127.0.0.1:1', model: m}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		says string
		args []string
	}{
		"a wrong port":        {"connection refused", []string{"--trainer", "upstream:http://127.0.0.1:1"}},
		"with a model":        {"connection refused", []string{"--trainer", "upstream:http://127.0.0.1:1", "--model", "m"}},
		"of a file":           {"upstream far: it cannot be reached", []string{"--upstreams", file, "--model", "far"}},
		"another server":      {"start it or correct its URL", []string{"--trainer", serve(http.StatusNotFound, "no such page")}},
		"a page":              {"start it or correct its URL", []string{"--trainer", serve(http.StatusOK, "<html>")}},
		"a key":               {"no such key", []string{"--trainer", serve(http.StatusUnauthorized, `{"error":{"message":"no such key"}}`)}},
		"two models":          {"it lists 2 models: say which one with --model", []string{"--trainer", serve(http.StatusOK, `{"data":[{"id":"a"},{"id":"b"}]}`)}},
		"with a bounded wait": {"waiting for it for 1s", []string{"--trainer", "upstream:http://127.0.0.1:1", "--wait", "1s"}},
		"a wrong wait":        {"--wait: -1s is not valid", []string{"--trainer", serve(http.StatusOK, `{"data":[{"id":"a"}]}`), "--wait", "-1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := t.TempDir()
			got := turngate(t, binary, append([]string{"run", "--sandbox", "local", "--runs", runs, good}, tt.args...)...)
			if jobs, err := os.ReadDir(runs); got.code != 2 || !strings.Contains(got.errOut, tt.says) || err != nil || len(jobs) > 0 {
				t.Errorf("%+v, with %v, %v", got, jobs, err)
			}
		})
	}
}

// TestAModelCallWaitsForAsLongAsTheRunSays: an upstream that starts and never answers ends the
// rollouts, not the user.
func TestAModelCallWaitsForAsLongAsTheRunSays(t *testing.T) {
	testenv.Slow(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":{"message":"the model is loading"}}`)
	}))
	defer s.Close()
	got := turngate(t, testenv.Binary(t), "run", "--agent", "mini", "--sandbox", "local", "--runs", t.TempDir(), "--console", "off",
		"--trainer", "upstream:"+s.URL, "--wait", "3s", task(t, map[string]string{"instruction.md": "x"}))
	if got.code != 1 || !strings.Contains(got.out+got.errOut, "no_trainer") || !strings.Contains(got.errOut, "the model is loading") {
		t.Errorf("%+v", got)
	}
}
