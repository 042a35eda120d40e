package e2e_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// redisImage is Debian's Redis on the base image of the tests. Its build
// downloads packages of Debian, so the image is kept between runs.
func redisImage(t *testing.T) string {
	t.Helper()
	const name = "turngate-test-redis:bookworm"
	base := testenv.Image(t)
	if exec.Command("docker", "image", "inspect", name).Run() == nil {
		return name
	}
	build := exec.Command("docker", "build", "--network", "host", "-t", name, "-")
	build.Stdin = strings.NewReader("FROM " + base + "\nRUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/*\n")
	if out, err := build.CombinedOutput(); err != nil {
		testenv.Need(t, "docker", fmt.Errorf("build an image with Debian's redis-server: %w: %s", err, clip(string(out))))
	}
	return name
}

const ask = `redis() { exec 3<>/dev/tcp/cache/6379; printf '%s\r\n' "$1" QUIT >&3; tr -d '\r' <&3; }; `

func TestARealAgentTalksToARedisBesideIt(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "opencode")
	task := writeTask(t, map[string]string{
		"instruction.md": "Put hello into the cache.\n",
		"task.toml":      "[agent]\ntimeout_sec = 300\n[environment]\nmemory_mb = 1024\n",
		"environment/docker-compose.yaml": `services:
  main:
    image: ` + testenv.Image(t) + `
    depends_on:
      cache: {condition: service_healthy}
    environment: ["UNSET=${NOT_SET_ANYWHERE}"]
    volumes:
      - ${CONTEXT_DIR}/../..:/shared
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
  cache:
    image: ` + redisImage(t) + `
    command: redis-server --bind 0.0.0.0 --protected-mode no --save "" --dir /data
    volumes: ["state:/data"]
    healthcheck:
      test: ["CMD", "redis-cli", "ping"]
      interval: 500ms
      retries: 60
volumes: {state: {}}
`,
		"replay.yaml":   "aux: A title\nsteps:\n- run: |\n    " + ask + "redis 'SET greeting hello' > /shared/answer\n- text: Done.\n",
		"tests/test.sh": "#!/bin/bash\n" + ask + "redis 'GET greeting' | grep -qx hello && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n",
	})
	worker := b.worker(t, filepath.Dir(task), "--sandboxes", "docker")
	trainer := b.run(t, "--agent", "opencode", "--sandbox", "docker", task)
	if code := trainer.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	res := results(t, trainer)
	if len(res) != 1 || res[0].Reward == nil || *res[0].Reward != 1 || res[0].Fault != nil {
		t.Fatalf("got %+v", res)
	}
	notes := strings.Join(res[0].Notes, "\n")
	if !strings.Contains(notes, "NOT_SET_ANYWHERE") || !strings.Contains(notes, "/shared") {
		t.Errorf("notes %q", res[0].Notes)
	}
	tr := b.nats.Trainer(t, "local")
	kept := func(name string) []byte {
		i := slices.IndexFunc(res[0].Artifacts, func(a schema.Artifact) bool { return a.Name == name })
		if i < 0 {
			t.Fatalf("%s is not among %v", name, res[0].Artifacts)
		}
		data, err := tr.Objects.Artifact(t.Context(), "local", res[0].Artifacts[i].SHA256)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if log := kept("services/cache.log"); !bytes.Contains(log, []byte("Ready to accept connections")) {
		t.Errorf("the log of the side-car: %s", log)
	}
	if found := answerIn(t, kept("folders/shared.tar")); !strings.Contains(found, "+OK") {
		t.Errorf("the shared folder has %q", found)
	}
	worker.stop(t)
	nothingLeft(t, "docker", res[0].ID)
	for _, kind := range []string{"network", "volume"} {
		out, err := exec.Command("docker", kind, "ls", "-q", "--filter", "label=turngate.rollout="+string(res[0].ID)).Output()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			t.Errorf("%s left: %s %v", kind, out, err)
		}
	}
}

// answerIn returns the text of the file answer in a tar.
func answerIn(t *testing.T, archive []byte) string {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err != nil {
			return ""
		}
		if strings.HasSuffix(h.Name, "answer") {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}

func TestASideCarThatFailsIsNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	image := testenv.Image(t)
	worker := b.worker(t, "", "--sandboxes", "docker")
	for _, c := range []struct{ failure, service, condition string }{
		{"ended with exit status 3", `command: ["sh", "-c", "echo no disk for me; exit 3"]`, "service_completed_successfully"},
		{"is not healthy after 2", `command: "sh -c 'echo no disk for me; sleep 1000'", healthcheck: {test: "false", interval: 200ms, retries: 2}`, "service_started"},
	} {
		task := writeTask(t, map[string]string{
			"instruction.md": "x", "tests/test.sh": "true", "replay.yaml": "steps:\n- text: Done.\n",
			"environment/docker-compose.yaml": "services:\n  main: {image: '" + image + "', depends_on: {db: {condition: " + c.condition + "}}}\n  db: {image: '" + image + "', " + c.service + "}\n",
		})
		trainer := b.run(t, "--agent", "mini", "--sandbox", "docker", task)
		trainer.wait(t, 10*time.Minute)
		res := results(t, trainer)
		if len(res) != 1 || res[0].Fault == nil || res[0].Fault.Code != schema.CodeService || res[0].Reward != nil ||
			!strings.Contains(res[0].Fault.Message, "service db "+c.failure) || !strings.Contains(res[0].Fault.Message, "no disk for me") {
			t.Errorf("%s: got %+v %v", c.failure, res, res[0].Fault)
		}
	}
	worker.stop(t)
}
