package tasks_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/tasks"
)

// TestATaskReadsNoVariableOfItsSubmitter asks for a variable of this process in
// every field in which a task can have one.
func TestATaskReadsNoVariableOfItsSubmitter(t *testing.T) {
	const name, secret = "TURNGATE_TEST_SECRET", "the-submitters-secret"
	t.Setenv(name, secret)
	t.Setenv("COMPOSE_PROFILES", secret)
	files := func() map[string]string {
		return map[string]string{
			"instruction.md": "x", "tests/test.sh": "", "solution/solve.sh": "", "environment/Dockerfile": "FROM x",
			"task.toml": "[verifier]\nenvironment_mode = 'separate'\nenv = { A = '${TURNGATE_TEST_SECRET}' }\n[verifier.environment]\nenv = { A = '${TURNGATE_TEST_SECRET}' }\n" +
				"[environment.env]\nA = '${TURNGATE_TEST_SECRET}'\n[solution.env]\nA = '${TURNGATE_TEST_SECRET:-none}'\n[[steps]]\nname = 's'\n[steps.verifier.env]\nB = '${TURNGATE_TEST_SECRET}'\n",
			"steps/s/instruction.md": "x", "steps/s/tests/test.sh": "",
			"environment/.env":  "FROM_FILE=${TURNGATE_TEST_SECRET}x",
			"environment/x.env": "FROM_ENV_FILE=${TURNGATE_TEST_SECRET}\nTURNGATE_TEST_SECRET\n",
			"environment/docker-compose.yaml": `
services:
  main:
    build: {context: ., args: [TURNGATE_TEST_SECRET, "B=${TURNGATE_TEST_SECRET}", "C=$TURNGATE_TEST_SECRET", "D=${FROM_FILE}"]}
    env_file: x.env
    environment: [TURNGATE_TEST_SECRET, "K=${TURNGATE_TEST_SECRET}", "L=${TURNGATE_TEST_SECRET-}", "M=${TURNGATE_TEST_SECRET:+set}"]
    command: [echo, "${TURNGATE_TEST_SECRET}"]
    configs: [c, d]
    secrets: [s]
    labels: {a: "${TURNGATE_TEST_SECRET}"}
    hostname: "h${TURNGATE_TEST_SECRET}"
configs:
  c: {environment: TURNGATE_TEST_SECRET}
  d: {content: "x${TURNGATE_TEST_SECRET}"}
secrets:
  s: {environment: TURNGATE_TEST_SECRET}
`,
		}
	}
	text := func(o tasks.Options) (*tasks.Task, string) {
		t.Helper()
		task, err := tasks.Load(write(t, t.TempDir(), files()), o)
		if err != nil {
			t.Fatal(err)
		}
		request, err := json.Marshal(task.Request)
		if err != nil {
			t.Fatal(err)
		}
		solution, err := json.Marshal(task.Solution)
		if err != nil {
			t.Fatal(err)
		}
		return task, string(bytes.Join([][]byte{request, solution, task.Bundle}, nil))
	}
	task, all := text(tasks.Options{})
	if strings.Contains(all, secret) {
		t.Errorf("the task has the secret:\n%s", all)
	}
	if task.Solution["A"] != "none" {
		t.Errorf("the default is not used: %v", task.Solution)
	}
	if notes := task.Request.Task.Notes; !strings.Contains(notes[0], "did not give") || !strings.Contains(notes[0], name) {
		t.Errorf("no note names the variable: %q", notes)
	}
	at := slices.IndexFunc(task.Missing, func(m tasks.Missing) bool { return m.Name == name })
	if at < 0 || !task.Missing[at].Empty || task.Missing[at].Where != "environment.env.A" {
		t.Errorf("missing: %+v", task.Missing)
	}
	task, all = text(tasks.Options{Env: map[string]string{name: "given"}})
	if strings.Contains(all, secret) || task.Solution["A"] != "given" || len(task.Missing) != 0 {
		t.Errorf("with the variable given: solution %v, missing %+v", task.Solution, task.Missing)
	}
	for _, want := range []string{`"K":"given"`, `"M":"set"`, `"B":"given"`} {
		if !strings.Contains(all, want) {
			t.Errorf("with the variable given, %s is missing:\n%s", want, all)
		}
	}
}

// TestANoteOfMissingVariablesHasRoom: the other notes do not push it out.
func TestANoteOfMissingVariablesHasRoom(t *testing.T) {
	var compose strings.Builder
	compose.WriteString("services:\n  main:\n    environment: [NOT_GIVEN]\n    volumes:\n")
	for range 80 {
		compose.WriteString("      - ../..:/d" + strings.Repeat("x", compose.Len()%97) + "\n")
	}
	task, err := tasks.Load(write(t, t.TempDir(), map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM x", "environment/docker-compose.yaml": compose.String()}), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if notes := task.Request.Task.Notes; !strings.Contains(notes[0], "NOT_GIVEN") || len(notes) > 64 {
		t.Errorf("%d notes, the first: %s", len(notes), notes[0])
	}
}
