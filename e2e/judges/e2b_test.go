package judges

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/turngate/turngate/internal/backends/e2b/e2btest"
)

// TestE2BClient checks the test server that replaces E2B in the tests of the backend e2b: E2B's
// official client works with it as with the service.
func TestE2BClient(t *testing.T) {
	node := node(t)
	s := e2btest.Start(t)
	cmd := exec.CommandContext(t.Context(), node, "e2b.mjs")
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
	id, left := got["id"], got["left"].(float64)
	if left < 60 || left > 121 {
		t.Errorf("%v s are left", left)
	}
	list := func(v ...any) []any { return v }
	want := map[string]any{
		"id": id, "left": left, "home": true,
		"run": list(0.0, "out", "err"), "exit": 7.0, "timeout": "TimeoutError",
		"listed": true, "background": "got input\n", "killed": true, "forever": "CommandExitError",
		"read": "hello", "bytes": list(0.0, 255.0, 10.0), "names": list("a.txt:file", "b.bin:file", "c.txt:file"),
		"made": true, "again": false, "exists": list(true, false), "info": 5.0, "removed": true, "none": "FileNotFoundError",
		"download": list(200.0, "hello"), "upload": list(200.0, "up"), "forged": false,
		"list": list(id), "others": 0.0, "connected": "again\n", "kill": list(true, false),
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
