package tasks_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/tasks"
)

// TestAValueOfAWrongType is refused with its key, its line and a valid form.
func TestAValueOfAWrongType(t *testing.T) {
	for text, want := range map[string]string{
		"[environment]\ncpus = \"two\"":            "environment.cpus: the string in line 2 is not valid: want a number",
		"\n[agent]\ntimeout_sec = true":            "agent.timeout_sec: the boolean in line 3 is not valid: want a number",
		"[[steps]]\nname = 3":                      "steps.name: the integer in line 2 is not valid: want a text",
		"[verifier]\nenv = {A = 1}":                "verifier.env: the integer in line 2 is not valid: want a text",
		"artifacts = 3":                            "artifacts: the integer in line 1 is not valid: want a list",
		"steps = 4":                                "steps: the integer in line 1 is not valid: want a list",
		"[environment]\nallow_internet = \"x\"":    "environment.allow_internet: the string in line 2 is not valid: want true or false",
		"[environment.healthcheck]\nretries = 1.5": "environment.healthcheck.retries: the float in line 2 is not valid: want a number without a fraction",
		"environment = 3":                          "environment: the integer in line 1 is not valid: want a table",
		"[turngate]\nsetup = 'x'":                  "turngate.setup: the string in line 2 is not valid: want a list",
		"[environment]\ncpus =":                    "task.toml: line 2: expected value, not end of input",
	} {
		dir := t.TempDir()
		for name, data := range map[string]string{"task.toml": text, "instruction.md": "Do it."} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := tasks.Load(dir, tasks.Options{})
		if want = "task " + dir + ": " + want; err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
