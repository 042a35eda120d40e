package prime_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestPrimesOwnClient checks the server of these tests: the published client of Prime works
// with it as with the service.
func TestPrimesOwnClient(t *testing.T) {
	python := testenv.Python(t, "prime_sandboxes")
	s := primetest.Start(t)
	cmd := exec.CommandContext(t.Context(), python, "testdata/client.py")
	cmd.Env = append(append(os.Environ(), s.Env()...), "HOME="+t.TempDir()) // the client keeps tokens there
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	harness.Must(t, err)
	stdout, err := cmd.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, cmd.Start())
	answers := bufio.NewReader(stdout)
	if _, err := answers.ReadString('\n'); err == nil {
		for _, i := range s.Sandboxes() {
			s.Cut(i.ID)
		}
		_, err = in.Write([]byte("\n"))
		harness.Must(t, err)
	}
	answer, rerr := io.ReadAll(answers)
	if err := errors.Join(rerr, cmd.Wait()); err != nil {
		t.Fatalf("%v: %s%s", err, answer, &said)
	}
	var got map[string]any
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	list := func(v ...any) []any { return v }
	id := got["id"]
	want := map[string]any{
		"id": id, "run": list(0.0, "out", "err"), "exit": 7.0, "stale": "again\n",
		"upload": list(true, 5.0), "read": "hello", "download": "hello", "none": "SandboxFileNotFoundError",
		"network": list(true, []any{}, nil),
		"live":    list("got input\n", "seen\n", 0.0), "terminated": true, "reconnected": 4.0,
		"list": list(id), "others": 0.0, "status": "RUNNING", "bulk": list(id), "deleted": "APIError", "left": 0.0,
	}
	for key, value := range want {
		if !reflect.DeepEqual(got[key], value) {
			t.Errorf("%s: got %v, want %v", key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d values, want %d", len(got), len(want))
	}
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
