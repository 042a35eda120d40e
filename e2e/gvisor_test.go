package e2e_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/dockerd"
)

// TestRolloutsInGVisor runs agents in containers on gVisor's kernel.
func TestRolloutsInGVisor(t *testing.T) {
	testenv.Slow(t)
	e := dockerd.StartHere(t, map[string]dockerd.Runtime{"runsc": dockerd.GVisor(t, "--overlay2=none")})
	t.Setenv("DOCKER_HOST", "unix://"+e.Socket)
	for _, agent := range []string{"mini", "opencode"} {
		t.Run(agent, func(t *testing.T) {
			b := newBench(t)
			b.need(t, "docker", agent)
			task := copyTask(t, "examples/tasks/hello", nil)
			worker := b.worker(t, filepath.Dir(task), "--sandboxes", "docker", "--docker-runtime", "runsc")
			p := b.run(t, "--agent", agent, "--sandbox", "docker", "--image", e.Image, task)
			if code := p.wait(t, 10*time.Minute); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			if r := results(t, p); len(r) != 1 || r[0].Reward == nil || *r[0].Reward != 1 || r[0].Fault != nil {
				t.Errorf("got %+v", r)
			}
			worker.stop(t)
		})
	}
	if left := e.Docker(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}
