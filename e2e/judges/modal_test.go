package judges

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/modal/modaltest"
)

// TestModalClient checks the test server that replaces Modal in the tests of the backend modal:
// Modal's official client for Python works with it as with the service.
func TestModalClient(t *testing.T) {
	const python = ".venv/bin/python"
	if _, err := os.Stat(python); err != nil {
		if strings.Contains(os.Getenv("TURNGATE_REQUIRE"), "agents") {
			t.Fatal("the client of Modal is not there; run `make judges`")
		}
		t.Skip("SKIPPED: the client of Modal is not there; run `make judges`")
	}
	s := modaltest.Start(t)
	cmd := exec.CommandContext(t.Context(), python, "modal_judge.py")
	cmd.Env = append(os.Environ(), s.Env()...)
	var said bytes.Buffer
	cmd.Stderr = &said
	answer, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, answer, &said)
	}
	var got map[string]any
	if err := json.Unmarshal(answer, &got); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	list := func(v ...any) []any { return v }
	id := got["id"]
	want := map[string]any{
		"id": id, "run": list("outhi\n", "err", 7.0), "poll": nil, "lines": list("got one\ngot two\nend\n", 0.0, 0.0),
		"binary": true, "killed": 137.0, "none": 127.0,
		"tags": map[string]any{"job": "a.b-c_d"}, "listed": list(id), "others": 0.0, "again": "again\n", "running": nil,
		"missing": "NotFoundError", "image": "ImageBuildError", "ended": 137.0, "left": 0.0,
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
