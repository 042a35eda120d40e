package front

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestSchemathesis sends requests that are made of the front's description, valid ones and
// others, and compares the answers with it. `make judges` installs the program.
func TestSchemathesis(t *testing.T) {
	testenv.Slow(t)
	program := filepath.Join(testenv.Root(t), "e2e", "judges", ".venv", "bin", "schemathesis")
	_, err := os.Stat(program)
	testenv.Need(t, "schemathesis", err)
	b := newBench(t)
	b.call(http.MethodPost, "/v1/rollouts", submission{Requests: []schema.Request{plainRequest()}}, http.StatusAccepted, nil)
	b.finish(1) // so that a read of results does not wait
	hooks, err := filepath.Abs("testdata/schemathesis_hooks.py")
	harness.Must(t, err)
	cmd := exec.CommandContext(t.Context(), program, "run", b.url+"/openapi.json", "--url", b.url, "-H", "Authorization: Bearer "+alphaToken,
		// The description does not say all that makes a request invalid: its parts may exclude
		// each other, and the front counts bytes where a schema counts characters.
		"--checks", "all", "--exclude-checks", "positive_data_acceptance",
		"--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--seed", "1", "--no-color", "--continue-on-failure")
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "SCHEMATHESIS_HOOKS="+hooks)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		t.Errorf("%v:\n%s", err, &said)
	}
}
