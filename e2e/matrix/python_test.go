package matrix_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestTrainersInPythonTrainEverySampledToken runs agents with tools for five turns. The
// template leaves earlier thinking out of prompts, and writes tool calls otherwise than
// the model. Each sampled token is trained, in one row, with the adapter for chat and with
// a handler of the user. Mode template_strips_five_turns of TestMatrix does it with an engine.
func TestTrainersInPythonTrainEverySampledToken(t *testing.T) {
	testenv.Slow(t)
	names, _ := agentNames(t)
	python := testenv.Python(t, "openenv") // with the packages that the client imports
	nats := start(t)
	task := writeTask(t)
	for _, how := range []string{"chat", "handler"} {
		t.Run(how, func(t *testing.T) {
			argv := append([]string{filepath.Join("testdata", "trainer.py"), how, nats.URL(), nats.TrainerCreds("local"), task}, names...)
			cmd := exec.CommandContext(t.Context(), python, argv...)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(testenv.Root(t), "clients", "python", "src"), "PYTHONDONTWRITEBYTECODE=1", "TURNGATE="+testenv.Binary(t))
			var failed strings.Builder
			cmd.Stderr = &failed
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, failed.String())
			}
			ran := 0
			for line := range strings.Lines(string(out)) {
				var r struct {
					Agent, Fault                  string
					Reward                        *float64
					Calls, Sampled, Trained, Rows int
				}
				harness.Must(t, json.Unmarshal([]byte(line), &r))
				if ran++; r.Reward == nil || *r.Reward != 1 || r.Fault != "" || r.Calls != 5 || r.Sampled < 1000 || r.Sampled != r.Trained || r.Rows != 1 {
					t.Errorf("%s", line)
				}
				t.Logf("%s", line)
			}
			if ran != len(names) {
				t.Errorf("%d of %d agents ran", ran, len(names))
			}
		})
	}
}
