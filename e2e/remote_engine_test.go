package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/dockerd"
)

// TestRolloutsOnARemoteEngine runs a task on a Docker engine without this host's files.
func TestRolloutsOnARemoteEngine(t *testing.T) {
	testenv.Slow(t)
	e := dockerd.Start(t)
	e.Use(t, e.Addr)
	binary := testenv.Binary(t)
	doctor := start(t, binary, "doctor")
	_ = doctor.wait(t, 10*time.Minute) // other lines may tell a problem
	if said := doctor.out.String(); !strings.Contains(said, "ok       docker sandbox") || !strings.Contains(said, "it lacks: this host's files") {
		t.Fatalf("doctor: %s", said)
	}
	p := start(t, binary, "run", "-o", "json", "--sandbox", "docker", "--image", e.Image, filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	if code := p.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, p); len(r) != 1 || r[0].Reward == nil || *r[0].Reward != 1 || r[0].Fault != nil {
		t.Errorf("got %+v", r)
	}
	if left := e.Docker(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}
