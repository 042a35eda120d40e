package docker_test

import (
	"errors"
	"testing"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/dockerd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

// TestGVisor runs the suite with containers on gVisor's kernel.
func TestGVisor(t *testing.T) {
	e := dockerd.StartHere(t, map[string]dockerd.Runtime{"runsc": dockerd.GVisor(t, "--overlay2=none"), "runsc-memory": dockerd.GVisor(t)})
	t.Setenv("DOCKER_HOST", "unix://"+e.Socket)
	open := func(runtime string) *docker.Backend {
		b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: t.TempDir(), Docker: sandboxes.Docker{Runtime: runtime}}})
		harness.Must(t, err)
		t.Cleanup(b.Close)
		harness.Must(t, b.Check(t.Context()))
		return b
	}
	b := open("runsc")
	sandboxtest.Run(t, sandboxtest.Fixture{
		New:      func(*testing.T) sandboxes.Backend { return b },
		Spec:     sandboxes.Spec{Image: e.Image},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: true, Users: true, Snapshots: true, OwnKernel: true},
	})
	t.Run("files in memory are not copied", func(t *testing.T) {
		sb, err := open("runsc-memory").Create(t.Context(), spec(e.Image))
		harness.Must(t, err)
		made, err := sb.Snapshot(t.Context(), 0)
		for _, err := range []error{err, sb.CanSnapshot()} { // the second one for the next rollouts
			var no *sandboxes.UnsupportedError
			if !errors.As(err, &no) || no.Field != "snapshot" || made != nil {
				t.Errorf("got %v, %v", made, err)
			}
		}
		harness.Must(t, sb.Close(t.Context()))
	})
	if left := e.Docker(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}
