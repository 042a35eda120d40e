package e2e_test

import (
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestTheHealthCheckOfAnImageIsUsed checks that a service with the condition
// service_healthy waits for the HEALTHCHECK of the side-car's image, and that an
// image without one is a fault of the task.
func TestTheHealthCheckOfAnImageIsUsed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	image := testenv.Image(t)
	worker := b.worker(t, "", "--sandboxes", "docker")
	run := func(dockerfile string) schema.Result {
		t.Helper()
		task := writeTask(t, map[string]string{
			"instruction.md": "x", "environment/Dockerfile": "FROM " + image + "\n", "environment/db/Dockerfile": "FROM " + image + "\n" + dockerfile,
			"tests/test.sh": "if [ -e /shared/up ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
			"environment/docker-compose.yaml": `services:
  main: {volumes: ['shared:/shared'], command: [sh, -c, 'test -e /shared/up && sleep infinity'], depends_on: {db: {condition: service_healthy}}}
  db: {build: ./db, volumes: ['shared:/shared'], command: [sh, -c, 'sleep 1; touch /shared/up; sleep infinity']}
volumes: {shared: {}}
`,
		})
		trainer := b.run(t, "--agent", "nop", "--sandbox", "docker", task)
		trainer.wait(t, 10*time.Minute)
		res := results(t, trainer)
		if len(res) != 1 {
			t.Fatalf("%+v: %s", res, trainer.err)
		}
		return res[0]
	}
	// Without the wait, main's command would fail, a fault of the task.
	if got := run("HEALTHCHECK --interval=200ms --retries=1000 CMD test -e /shared/up\n"); got.Fault != nil || got.Reward == nil || *got.Reward != 1 {
		t.Errorf("got %+v, %v", got.Reward, got.Fault)
	}
	if got := run(""); got.Fault == nil || got.Fault.Code != schema.CodeService || !strings.Contains(got.Fault.Message, "no health check") {
		t.Errorf("an image without a check: %+v", got.Fault)
	}
	worker.stop(t)
}
