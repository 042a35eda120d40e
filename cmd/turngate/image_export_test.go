package main_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestATaskWithADockerfileRunsWithoutAnEngine exports the image of a task, and runs the task in
// the local sandbox of a host with an engine that does not answer.
func TestATaskWithADockerfileRunsWithoutAnEngine(t *testing.T) {
	testenv.Slow(t)
	base := testenv.Image(t)
	binary := testenv.Binary(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	images := filepath.Join(t.TempDir(), "images")
	dockerfile := "FROM " + base + "\nENV MADE=image\nRUN echo $MADE > /made\nWORKDIR /work\n"
	files := map[string]string{
		"instruction.md": "x", "environment/Dockerfile": dockerfile,
		"solution/solve.sh": "#!/bin/sh\ntest \"$PWD $MADE\" = '/work image' && cp /made out\n",
		"tests/test.sh":     "#!/bin/bash\ncmp /made /work/out && echo 1 > /logs/verifier/reward.txt\n",
	}
	built, plain := task(t, files), task(t, map[string]string{"instruction.md": "x", "task.toml": "[environment]\ndocker_image = \"" + base + "\"\n", "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"})
	got := turngate(t, binary, "image", "export", "--to", images, built, base)
	if got.code != 0 || strings.Count(got.out, "\n") != 2 || !strings.Contains(got.out, "turngate-build:") || !strings.Contains(got.out, base) {
		t.Fatalf("%+v", got)
	}
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	for agent, dir := range map[string]string{"oracle": built, "nop": plain} {
		got := turngate(t, binary, "run", "--sandbox", "local", "--local-images", images, "--agent", agent, "-o", "json", dir)
		if got.code != 0 || !strings.Contains(got.out, `"reward": 1`) {
			t.Errorf("%s: %+v", agent, got)
		}
	}
	files["environment/other"] = "x"
	other := task(t, files)
	for want, args := range map[string][]string{
		"turngate image export --to " + images + " TASK": {"run", "--sandbox", "local", "--local-images", images, "--agent", "nop", other},
		"--local-images": {"run", "--sandbox", "local", "--local-images", "/no/such/folder", built},
		"which the local sandbox cannot build; use --sandbox docker, or --sandbox local with --local-images": {"run", "--sandbox", "local", "--agent", "nop", built},
		"--to: want the folder":       {"image", "export", built},
		`"Not An Image" is not valid`: {"image", "export", "--to", images, "Not An Image"},
		"/no/such/task":               {"image", "export", "--to", images, "/no/such/task"},
	} {
		if got := turngate(t, binary, args...); got.code == 0 || !strings.Contains(got.errOut+got.out, want) {
			t.Errorf("%q: %+v", want, got)
		}
	}
}
